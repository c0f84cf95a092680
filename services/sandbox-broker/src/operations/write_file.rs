//! WriteFile: by a command of the agent's user inside the sandbox, whole or not at all: the content goes to a file beside
//! the target, which then takes its place and keeps its mode.

use berth_rpc::broker as api;

use super::read_file::MAX_BYTES;
use crate::{actions::Context, error::Error, held, paths, provider::ExecSpec};

/// `$1` path, `$2` size, then the roots. A link is followed to its target, which must lie in a root and is replaced itself.
const SCRIPT: &str = r#"
path=$(realpath -m -- "$1" 2>/dev/null && printf x) || exit 48
path=${path%
x}
size=$2
shift 2
for root in "$@"; do
  case "$path" in "$root"/*) inside=1 ;; esac
done
[ -n "$inside" ] || exit 45
folder=${path%/*}
[ -d "$folder" ] || exit 48
if [ -e "$path" ] && [ ! -f "$path" ]; then exit 46; fi
[ -w "$folder" ] || exit 47
if [ -e "$path" ] && [ ! -w "$path" ]; then exit 47; fi
umask 022
beside=$(mktemp -- "$folder/.berth-write-XXXXXXXX") || exit 47
trap 'rm -f -- "$beside"' EXIT
cat > "$beside" || exit 49
[ "$(stat -c %s -- "$beside")" = "$size" ] || exit 49
if [ -e "$path" ]; then chmod --reference="$path" -- "$beside"; else chmod 0644 -- "$beside"; fi
mv -fT -- "$beside" "$path" || exit 49
"#;

pub(crate) async fn write_file(
    context: &Context,
    request: api::WriteFileRequest,
) -> Result<api::WriteFileResponse, Error> {
    if request.content.len() > MAX_BYTES {
        return Err(Error::Invalid {
            field: "content",
            reason: "FILE_TOO_LARGE",
            message: format!("at most {MAX_BYTES} bytes"),
        });
    }
    let held = held::resolve(context, request.hold).await?;
    let path = paths::resolve("path", &held.workdir, &request.path)?;
    let size = request.content.len();
    let mut argv: Vec<String> = ["/bin/sh", "-c", SCRIPT, "sh"].map(str::to_owned).into();
    argv.extend([path, size.to_string()]);
    argv.extend(paths::ROOTS.map(str::to_owned));
    let spec = ExecSpec { argv, cwd: "/".to_owned(), stdin: request.content.into(), ..ExecSpec::default() };
    let finished = match held.sandbox.run(spec, context.timeouts.step, 0).await {
        Ok(finished) => finished,
        Err(error) => return Err(held.explain(context, error).await),
    };
    match finished.exit.code {
        0 => Ok(api::WriteFileResponse { size: size as i64 }),
        45 => Err(paths::outside("path")),
        46 => Err(Error::Precondition {
            reason: "NOT_A_FILE",
            message: "something that is no regular file is there".to_owned(),
        }),
        47 => Err(Error::Precondition {
            reason: "FILE_UNWRITABLE",
            message: "the agent may not write this file".to_owned(),
        }),
        48 => Err(Error::Precondition {
            reason: "PARENT_MISSING",
            message: "the folder of the file does not exist".to_owned(),
        }),
        _ => Err(Error::Precondition {
            reason: "FILE_UNWRITABLE",
            message: "the file could not be written whole".to_owned(),
        }),
    }
}
