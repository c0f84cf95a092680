//! Entering new namespaces.

use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;

use super::{Failure, Step};

/// Everything but the control group namespace, which has to wait until the broker put us into our group.
pub(super) fn all(user: bool, network: bool) -> Result<(), Failure> {
    let mut flags =
        CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    flags.set(CloneFlags::CLONE_NEWUSER, user);
    flags.set(CloneFlags::CLONE_NEWNET, network);
    nix::sched::unshare(flags).step("make the namespaces")?;
    // From here on no mount of ours reaches the host.
    let nothing: Option<&str> = None;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).step("make the mounts private")
}

/// Hides the path of our control group; where it cannot be hidden nothing is lost.
pub(super) fn cgroups() {
    let _ = nix::sched::unshare(CloneFlags::CLONE_NEWCGROUP);
}
