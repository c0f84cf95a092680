//! What a sandbox sees: a new root with read-only copies of the system directories' mounts, a generated `/etc`, a private
//! `/proc`, a minimal `/dev`, and the agent's own directories. Nothing else.
//!
//! In two halves. Sources are picked up as detached mounts while we still have the broker's rights on host paths; the
//! new root is put together afterwards by the inner root, who owns nothing on the host.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::{Failure, Step, etc};
use crate::config::inside;
use crate::protocol::Plan;
use crate::state::RUN;

/// Where the new root is put together: directories every Linux has, in our own mount namespace.
const STAGING: [&str; 4] = ["/tmp", "/run", "/mnt", "/var"];

/// Top-level directories of the system: shown read-only, or repeated where they are symlinks.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Public files of `/etc` that programs need. Nothing that may hold a secret.
const ETC: [&str; 12] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
];

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Kernel files that the agent has no business with, covered up inside.
const COVERED: [&str; 6] = ["kcore", "keys", "kmsg", "sysrq-trigger", "timer_list", "sched_debug"];

/// A detached mount and where it goes.
struct Part {
    tree: OwnedFd,
    target: PathBuf,
    directory: bool,
}

/// Everything picked up from the host.
pub(super) struct Parts {
    mounts: Vec<Part>,
    links: Vec<(PathBuf, PathBuf)>,
    run: OwnedFd,
}

#[derive(Clone, Copy)]
enum Access {
    ReadOnly,
    ReadWrite,
    Device,
}

impl Parts {
    /// Picks up all sources; needs the broker's rights on host paths.
    pub(super) fn collect(plan: &Plan) -> Result<Self, Failure> {
        let mut parts =
            Self { mounts: Vec::new(), links: Vec::new(), run: pick_up(&plan.directory.join(RUN), Access::ReadWrite)? };
        for path in SYSTEM.iter().chain(&ETC) {
            parts.add_system(Path::new(path))?;
        }
        for device in DEVICES {
            parts.add(&Path::new("/dev").join(device), Path::new("/dev").join(device), Access::Device)?;
        }
        let own = |name: &str| plan.directory.join(name);
        parts.add(&own("workspace"), inside::WORKSPACE.into(), Access::ReadWrite)?;
        parts.add(&own("home"), inside::HOME.into(), Access::ReadWrite)?;
        parts.add(&own("tmp"), "/tmp".into(), Access::ReadWrite)?;
        for bind in &plan.binds {
            parts.add(&bind.source, bind.target.clone(), Access::ReadOnly)?;
        }
        Ok(parts)
    }

    /// A system path that may be absent, or a symlink (`/bin` to `usr/bin`).
    fn add_system(&mut self, path: &Path) -> Result<(), Failure> {
        let Ok(kind) = fs::symlink_metadata(path) else { return Ok(()) };
        if kind.is_symlink() {
            let target = fs::read_link(path).step(&format!("read the link {}", path.display()))?;
            self.links.push((path.to_owned(), target));
            return Ok(());
        }
        self.add(path, path.to_owned(), Access::ReadOnly)
    }

    fn add(&mut self, source: &Path, target: PathBuf, access: Access) -> Result<(), Failure> {
        let tree = pick_up(source, access)?;
        let directory = fs::metadata(source).step(&format!("look at {}", source.display()))?.is_dir();
        self.mounts.push(Part { tree, target, directory });
        Ok(())
    }
}

/// Copies the mounts at `source` into a detached tree with restricted attributes.
fn pick_up(source: &Path, access: Access) -> Result<OwnedFd, Failure> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, source, flags).step(&format!("pick up {}", source.display()))?;
    let attributes = match access {
        Access::ReadOnly => libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        Access::ReadWrite => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        Access::Device => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC,
    };
    restrict(&tree, attributes, libc::AT_RECURSIVE).step(&format!("restrict {}", source.display()))?;
    Ok(tree)
}

/// Adds mount attributes to a tree; with `AT_RECURSIVE` as depth to everything mounted below it too.
fn restrict(tree: &OwnedFd, attributes: u64, depth: libc::c_int) -> io::Result<()> {
    let wanted = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | depth;
    // SAFETY: the path is an empty C string and the structure has the size we state.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const wanted,
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Tries the one kernel feature all this stands on.
pub(super) fn probe_attributes() -> Result<(), Failure> {
    pick_up(Path::new("/usr"), Access::ReadOnly).map(drop)
}

/// Puts the new root together and enters it. Returns the directory of the egress socket.
pub(super) fn assemble(plan: &Plan, parts: Parts) -> Result<OwnedFd, Failure> {
    let root = STAGING.into_iter().map(Path::new).find(|path| path.is_dir()).ok_or(io::ErrorKind::NotFound);
    let root = root.step("find a place for the new root")?;
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount_new("tmpfs", root, quiet, "mode=0755,size=4m,nr_inodes=4k")?;

    let below = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    for directory in ["etc", "proc", "dev", "home", "run", "var/tmp"] {
        make_directory(&root.join(directory))?;
    }
    mount_new("tmpfs", &root.join("dev"), MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, "mode=0755,size=64k,nr_inodes=64")?;
    for part in &parts.mounts {
        attach(part, &below(&part.target))?;
    }
    for (link, target) in &parts.links {
        make_directory(below(link).parent().unwrap_or(root))?;
        symlink(target, below(link)).step(&format!("repeat the link {}", link.display()))?;
    }
    etc::write(&root.join("etc"), plan.ids).step("write the generated files of /etc")?;
    fill_dev(&root.join("dev"), plan.shm_bytes)?;
    let hidden = quiet | MsFlags::MS_NOEXEC;
    mount_new("proc", &root.join("proc"), hidden, "")?;
    cover(&root.join("proc"), &root.join("dev/null"))?;
    close(&root.join("dev"))?;
    enter(root)?;
    close(Path::new("/"))?;
    Ok(parts.run)
}

fn mount_new(kind: &str, target: &Path, flags: MsFlags, options: &str) -> Result<(), Failure> {
    mount(Some(kind), target, Some(kind), flags, Some(options)).step(&format!("mount {kind} on {}", target.display()))
}

fn make_directory(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).step(&format!("make the directory {}", path.display()))
}

fn attach(part: &Part, target: &Path) -> Result<(), Failure> {
    if part.directory {
        make_directory(target)?;
    } else {
        make_directory(target.parent().unwrap_or(target))?;
        if !target.exists() {
            fs::File::create(target).step(&format!("make the file {}", target.display()))?;
        }
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&part.tree, "", CWD, target, flags).step(&format!("attach {}", target.display()))
}

fn fill_dev(dev: &Path, shm_bytes: u64) -> Result<(), Failure> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    make_directory(&dev.join("pts"))?;
    mount_new("devpts", &dev.join("pts"), flags, "newinstance,ptmxmode=0666,mode=0620")?;
    make_directory(&dev.join("shm"))?;
    mount_new(
        "tmpfs",
        &dev.join("shm"),
        flags | MsFlags::MS_NODEV,
        &format!("mode=1777,size={shm_bytes},nr_inodes=16k"),
    )?;
    for (link, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, dev.join(link)).step("make the links of /dev")?;
    }
    Ok(())
}

fn cover(proc: &Path, null: &Path) -> Result<(), Failure> {
    let nothing: Option<&str> = None;
    for name in COVERED {
        let path = proc.join(name);
        if fs::symlink_metadata(&path).is_ok_and(|kind| !kind.file_type().is_char_device()) {
            mount(Some(null), &path, nothing, MsFlags::MS_BIND, nothing).step(&format!("cover /proc/{name}"))?;
        }
    }
    Ok(())
}

/// Makes one mount read-only, keeping its other attributes.
fn close(target: &Path) -> Result<(), Failure> {
    let flags = OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, target, flags).step(&format!("open {}", target.display()))?;
    restrict(&tree, libc::MOUNT_ATTR_RDONLY, 0).step(&format!("make {} read-only", target.display()))
}

fn enter(root: &Path) -> Result<(), Failure> {
    std::env::set_current_dir(root).step("go to the new root")?;
    // The old root ends up mounted over the new one and is then taken off as a whole.
    nix::unistd::pivot_root(".", ".").step("change to the new root")?;
    umount2(".", MntFlags::MNT_DETACH).step("leave the host's files")?;
    std::env::set_current_dir("/").step("go to the new root")
}
