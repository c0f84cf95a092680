//! Who we are and what we may: the init keeps only what running commands needs, the agent keeps nothing.

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};

use super::{Failure, Step};
use crate::config::ExecUser;
use crate::protocol::Plan;

/// Enough to run commands as others, to kill them, and for the inner root to manage files inside.
fn needed() -> CapabilitySet {
    CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::KILL
        | CapabilitySet::SETGID
        | CapabilitySet::SETPCAP
        | CapabilitySet::SETUID
}

/// Stops being the broker's user: from here on host files belong to somebody else. Where only the agent is mapped, we are
/// that user already and differ from it by our capabilities alone.
pub(super) fn become_inner_root(plan: &Plan) -> Result<(), Failure> {
    if plan.user_namespace
        && let Some(root) = plan.ids.root
    {
        switch(root, root).step("become the inner root")?;
    }
    Ok(())
}

/// Gives up every capability the init has no use for.
pub(super) fn keep_only_needed(plan: &Plan) -> Result<(), Failure> {
    // Without a user namespace the init stays the broker's root, with fewer capabilities.
    drop_bounding(needed()).step("restrict the bounding capabilities")?;
    set(needed()).step("restrict the capabilities")?;
    let _ = plan;
    // No process inside may look into us, even where it runs under the same uid.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .step("hide the init's memory")
}

/// Becomes the user of an exec, in the forked child. Order matters: groups before users, capabilities last.
pub(super) fn become_user(plan: &Plan, user: ExecUser) -> io::Result<()> {
    let keep = match user {
        ExecUser::Agent => CapabilitySet::empty(),
        // Set-uid is kept out: the inner root does not become the agent, the broker starts agents.
        ExecUser::InnerRoot if plan.user_namespace => {
            CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER | CapabilitySet::KILL
        }
        ExecUser::InnerRoot => CapabilitySet::empty(),
    };
    drop_bounding(keep)?;
    let id = match user {
        ExecUser::Agent => plan.ids.agent,
        ExecUser::InnerRoot => plan.ids.root.ok_or(io::ErrorKind::Unsupported)?,
    };
    if plan.ids.root.is_some() {
        switch(id, id)?;
    }
    set(keep)?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

fn switch(uid: u32, gid: u32) -> io::Result<()> {
    nix::unistd::setgroups(&[])?;
    nix::unistd::setresgid(gid.into(), gid.into(), gid.into())?;
    nix::unistd::setresuid(uid.into(), uid.into(), uid.into())?;
    Ok(())
}

fn set(keep: CapabilitySet) -> io::Result<()> {
    // Changing users may have dropped the effective ones already; what is not permitted cannot be kept.
    let permitted = capabilities(None)?.permitted & keep;
    let sets = CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    rustix::thread::clear_ambient_capability_set()?;
    Ok(())
}

/// Removes everything but `keep` from the bounding set, capabilities of newer kernels included.
fn drop_bounding(keep: CapabilitySet) -> io::Result<()> {
    for number in 0..64_u32 {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if keep.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // Past the last capability of this kernel.
            Err(rustix::io::Errno::INVAL) => break,
            Err(failure) => return Err(failure.into()),
        }
    }
    Ok(())
}
