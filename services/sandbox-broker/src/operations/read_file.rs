//! ReadFile: by a command of the agent's user inside the sandbox; the host never opens an agent's file.

use berth_rpc::broker as api;

use crate::{actions::Context, error::Error, held, paths, provider::ExecSpec};

/// Largest content in one answer.
pub(crate) const MAX_BYTES: usize = 10 << 20;

/// The resolved path must lie in one of the roots given after the first two arguments. Its size goes to standard error.
const SCRIPT: &str = r#"
path=$(realpath -e -- "$1" 2>/dev/null && printf x) || exit 44
path=${path%
x}
max=$2
shift 2
for root in "$@"; do
  case "$path" in "$root"|"$root"/*) inside=1 ;; esac
done
[ -n "$inside" ] || exit 45
[ -f "$path" ] || exit 46
[ -r "$path" ] || exit 47
stat -L -c %s -- "$path" >&2 && exec head -c "$max" -- "$path"
"#;

pub(crate) async fn read_file(
    context: &Context,
    request: api::ReadFileRequest,
) -> Result<api::ReadFileResponse, Error> {
    let max = match usize::try_from(request.max_bytes) {
        Ok(0) => MAX_BYTES,
        Ok(max) if max <= MAX_BYTES => max,
        _ => {
            return Err(Error::Invalid {
                field: "max_bytes",
                reason: "MAX_BYTES_INVALID",
                message: format!("0 to {MAX_BYTES}"),
            });
        }
    };
    let held = held::resolve(context, request.hold).await?;
    let path = paths::resolve("path", &held.workdir, &request.path)?;
    let mut argv: Vec<String> = ["/bin/sh", "-c", SCRIPT, "sh"].map(str::to_owned).into();
    argv.extend([path, max.to_string()]);
    argv.extend(paths::ROOTS.map(str::to_owned));
    let spec = ExecSpec { argv, cwd: "/".to_owned(), ..ExecSpec::default() };
    let finished = match held.sandbox.run(spec, context.timeouts.step, max).await {
        Ok(finished) => finished,
        Err(error) => return Err(held.explain(context, error).await),
    };
    match finished.exit.code {
        0 => {
            let size: i64 = finished.stderr.trim().parse().map_err(|_| Error::Unexpected("no size of the file"))?;
            let truncated = size > finished.stdout.len() as i64;
            Ok(api::ReadFileResponse { content: finished.stdout, size, truncated })
        }
        44 => Err(Error::FileNotFound),
        45 => Err(paths::outside("path")),
        46 => Err(Error::Precondition { reason: "NOT_A_FILE", message: "not a regular file".to_owned() }),
        47 => Err(Error::Precondition {
            reason: "FILE_UNREADABLE",
            message: "the agent may not read this file".to_owned(),
        }),
        _ => Err(Error::Precondition { reason: "FILE_UNREADABLE", message: "the file could not be read".to_owned() }),
    }
}
