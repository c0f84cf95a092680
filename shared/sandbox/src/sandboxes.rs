//! The one entry of the library: all sandboxes below one root directory. It holds nothing that is not also on disk or in
//! the kernel, so a new one over the same root sees and does the same.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tracing::{debug, warn};

use crate::cgroup::Hierarchies;
use crate::config::{Missing, SandboxConfig, Spec, inside};
use crate::control;
use crate::create::{self, Ground, HostIds};
use crate::destroy;
use crate::egress::{EgressGuard, EgressRule};
use crate::error::{During, ErrorKind, Result, SandboxError};
use crate::exec::{self, ExecHandle};
use crate::kernel::{self, KernelReport};
use crate::key;
use crate::observed::{Found, Observed, Record, Sandbox};
use crate::protocol::Request;
use crate::state::Home;
use crate::{ExecSpec, ExecUser};

/// Killing everything inside takes milliseconds; a machine under load gets this long.
const KILL_ALL_PATIENCE: Duration = Duration::from_secs(30);
const EXTEND_PATIENCE: Duration = Duration::from_secs(10);

/// All sandboxes below one root directory. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sandboxes {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: SandboxConfig,
    root: PathBuf,
    root_tag: String,
    report: KernelReport,
    /// What is there; used for creation only when the report says so.
    cgroups: Option<Hierarchies>,
}

impl Sandboxes {
    /// Makes the root directory and looks at what the kernel offers.
    ///
    /// # Errors
    /// `Invalid` for nonsensical settings, `Internal` when the root cannot be made or the init program not be started.
    /// A poor kernel is no error here: [`Sandboxes::create`] refuses.
    pub async fn new(config: SandboxConfig) -> Result<Self> {
        blocking(move || {
            for bind in &config.read_only_binds {
                check_bind(&bind.source, &bind.target)?;
            }
            let root = create::make_root(&config.root)?;
            let root_tag = create::root_tag(&root);
            let cgroups = Hierarchies::detect();
            let report = kernel::probe(&config.init, &config.unavailable, cgroups.as_ref())?;
            debug!(?report, "looked at the kernel");
            Ok(Self { inner: Arc::new(Inner { config, root, root_tag, report, cgroups }) })
        })
        .await
    }

    /// What the kernel offers, as seen when this value was made.
    pub fn probe(&self) -> &KernelReport {
        &self.inner.report
    }

    /// Whether `create` can work: the error it would give otherwise.
    pub fn ready(&self) -> Result<()> {
        let report = &self.inner.report;
        if let Some(why) = &report.impossible {
            return Err(SandboxError::Impossible(why.clone()));
        }
        let missing = report.refused(&self.inner.config.allow);
        if missing.is_empty() {
            Ok(())
        } else {
            Err(SandboxError::Missing { missing, detail: report.details.join("; ") })
        }
    }

    /// Creates and starts a sandbox. When it fails, nothing is left; when the caller (or its whole process) goes away
    /// midway, what is left is found by [`Sandboxes::find`] or is nothing.
    ///
    /// # Errors
    /// `Unsupported` when the kernel offers too little, `Exists` when the key is taken, even by a half-made sandbox.
    pub async fn create(&self, key: &str, spec: &Spec) -> Result<Sandbox> {
        key::check(key)?;
        self.ready()?;
        let (this, key, spec) = (self.clone(), key.to_owned(), spec.clone());
        blocking(move || {
            let home = this.home(&key);
            home.make(&key)?;
            let ground = this.ground();
            match create::create(&ground, &home, &key, &spec) {
                Ok(record) => Ok(Sandbox { key, record }),
                Err(failure) => {
                    if let Err(second) = this.destroy_blocking(&key) {
                        warn!(key, error = %second, "half-made sandbox could not be removed");
                    }
                    Err(failure)
                }
            }
        })
        .await
    }

    /// The sandbox of this key, in whatever state; `None` when nothing of it is there.
    pub async fn find(&self, key: &str) -> Result<Option<Found>> {
        key::check(key)?;
        let (this, key) = (self.clone(), key.to_owned());
        blocking(move || this.find_blocking(&key)).await
    }

    /// Every sandbox that has a directory below the root, ordered by key.
    pub async fn list(&self) -> Result<Vec<Found>> {
        let this = self.clone();
        blocking(move || {
            let mut all = Vec::new();
            for entry in std::fs::read_dir(&this.inner.root).during("list the sandbox root")? {
                let name = entry.during("list the sandbox root")?.file_name();
                let Some(name) = name.to_str().filter(|name| key::check(name).is_ok()) else { continue };
                all.extend(this.find_blocking(name)?);
            }
            all.sort_by(|one, other| one.key.cmp(&other.key));
            Ok(all)
        })
        .await
    }

    /// What the sandbox is now; changes nothing.
    pub async fn observe(&self, key: &str) -> Result<Observed> {
        Ok(self.find(key).await?.map_or(Observed::Absent, |found| found.observed))
    }

    /// Whether nothing of the sandbox is left: no directory, no process, no control group.
    pub async fn observed_absent(&self, key: &str) -> Result<bool> {
        Ok(self.observe(key).await? == Observed::Absent)
    }

    /// Starts a command inside.
    ///
    /// # Errors
    /// `NotFound`, `NotRunning`; `NotStarted` when the program, the directory or the user does not exist inside.
    pub async fn exec(&self, key: &str, mut spec: ExecSpec) -> Result<ExecHandle> {
        let record = self.running(key).await?;
        if spec.argv.is_empty() {
            return Err(SandboxError::Invalid { what: "command", why: "it has no program".to_owned() });
        }
        if spec.user == ExecUser::InnerRoot && !record.capabilities.inner_root {
            let why = "inner root is not available to a broker that is not root".to_owned();
            return Err(SandboxError::Invalid { what: "user", why });
        }
        if record.capabilities.network_namespace {
            add_proxy(&mut spec);
        }
        let ids = HostIds::of(key, &self.inner.root_tag, self.inner.report.root);
        let owner = match spec.user {
            ExecUser::Agent => ids.agent,
            ExecUser::InnerRoot => ids.root.unwrap_or(ids.agent),
        };
        let line = self.connect(key)?;
        exec::start(line, spec, self.inner.report.root.then_some(owner)).await
    }

    /// Kills every process inside but the init, and waits until they are gone.
    pub async fn kill_all(&self, key: &str) -> Result<()> {
        self.running(key).await?;
        control::ask(self.connect(key)?, &Request::KillAll, KILL_ALL_PATIENCE, "end of all processes").await
    }

    /// Moves the moment at which the sandbox ends itself.
    pub async fn set_deadline(&self, key: &str, deadline: Option<SystemTime>) -> Result<()> {
        let mut record = self.running(key).await?;
        let request = Request::Deadline { deadline_ms: deadline.map(create::milliseconds) };
        control::ask(self.connect(key)?, &request, EXTEND_PATIENCE, "new deadline").await?;
        record.spec.deadline = deadline;
        let home = self.home(key);
        blocking(move || home.write_record(&record)).await
    }

    /// Ends and deletes the sandbox: init killed, its process namespace empty, control groups and tree gone. Works from
    /// any state, half-made included, and is fine when nothing is there.
    pub async fn destroy(&self, key: &str) -> Result<()> {
        key::check(key)?;
        let (this, key) = (self.clone(), key.to_owned());
        blocking(move || this.destroy_blocking(&key)).await
    }

    /// Opens the way out of the sandbox to exactly these hosts and ports, until the guard is dropped. Called again (by
    /// a restarted broker, or with other rules) it replaces the listener.
    pub async fn egress(&self, key: &str, rules: Vec<EgressRule>) -> Result<EgressGuard> {
        key::check(key)?;
        let home = self.home(key);
        if !home.exists()? {
            return Err(SandboxError::NotFound(key.to_owned()));
        }
        EgressGuard::open(&home.run(), key, rules)
    }

    fn home(&self, key: &str) -> Home {
        Home::new(&self.inner.root, key)
    }

    fn ground(&self) -> Ground<'_> {
        let inner = &self.inner;
        let use_cgroups = !inner.report.missing.contains(&Missing::NoCgroup);
        Ground {
            config: &inner.config,
            root_tag: &inner.root_tag,
            report: &inner.report,
            cgroups: inner.cgroups.as_ref().filter(|_| use_cgroups),
        }
    }

    fn find_blocking(&self, key: &str) -> Result<Option<Found>> {
        let home = self.home(key);
        let record = if home.exists()? { home.read_record()? } else { None };
        let observed = match &record {
            Some(record) if destroy::is_running(record) => Observed::Running { since: record.created_at },
            _ if destroy::is_absent(&self.inner.root, &self.inner.root_tag, key, self.inner.cgroups.as_ref())? => {
                return Ok(None);
            }
            _ => Observed::Stopped,
        };
        Ok(Some(Found { key: key.to_owned(), record, observed }))
    }

    fn destroy_blocking(&self, key: &str) -> Result<()> {
        destroy::destroy(&self.inner.root, &self.inner.root_tag, key, self.inner.cgroups.as_ref())
    }

    async fn running(&self, key: &str) -> Result<Record> {
        match self.find(key).await? {
            Some(Found { record: Some(record), observed: Observed::Running { .. }, .. }) => Ok(record),
            Some(_) => Err(SandboxError::NotRunning(key.to_owned())),
            None => Err(SandboxError::NotFound(key.to_owned())),
        }
    }

    /// A local connect neither blocks nor takes measurable time.
    fn connect(&self, key: &str) -> Result<std::os::unix::net::UnixStream> {
        control::connect(&self.home(key)).map_err(|failure| match failure.kind() {
            ErrorKind::NotRunning => SandboxError::NotRunning(key.to_owned()),
            _ => failure,
        })
    }
}

fn add_proxy(spec: &mut ExecSpec) {
    let proxy = |name| (name, inside::PROXY);
    let local = |name| (name, "localhost,127.0.0.1,::1");
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"];
    for (name, value) in names.map(proxy).into_iter().chain(["NO_PROXY", "no_proxy"].map(local)) {
        spec.env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
}

fn check_bind(source: &Path, target: &Path) -> Result<()> {
    use std::path::Component;
    let plain = |path: &Path| {
        path.is_absolute() && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
    };
    let refuse = |why: &str| {
        let why = format!("{} to {}: {why}", source.display(), target.display());
        Err(SandboxError::Invalid { what: "read-only bind", why })
    };
    if !plain(source) || !plain(target) || target == Path::new("/") {
        return refuse("both must be absolute paths without dots");
    }
    // Below directories that the agent can write to, a mount point could not be trusted to stay where it is.
    let taken = [inside::WORKSPACE, "/home", "/tmp", "/proc", "/dev"];
    if taken.iter().any(|place| target.starts_with(place)) {
        return refuse("the target lies in a directory of the sandbox itself");
    }
    Ok(())
}

/// Runs blocking work to its end even when the caller goes away.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(failure) => Err(SandboxError::io("run blocking work", std::io::Error::other(failure))),
    }
}
