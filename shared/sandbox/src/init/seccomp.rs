//! System calls no command needs and past kernels were broken through. A deny list, because the sandbox has to run any
//! toolchain; namespaces and missing capabilities are the wall, this makes it thicker.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

use super::{Failure, Step};

/// Answered with EPERM whatever the arguments.
const DENIED: [i64; 44] = [
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// New namespaces by `clone`.
const NAMESPACE_FLAGS: [libc::c_int; 7] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// Sockets that a network namespace does not hold back: to the hypervisor, and into kernel crypto.
const DENIED_FAMILIES: [libc::c_int; 2] = [libc::AF_VSOCK, libc::AF_ALG];

/// Compiled filters, applied in the forked child just before it becomes the command.
pub(crate) struct Filters {
    programs: Vec<BpfProgram>,
}

impl Filters {
    /// With `wanted` false, no filters.
    pub(super) fn compile(wanted: bool) -> Result<Self, Failure> {
        if !wanted {
            return Ok(Self { programs: Vec::new() });
        }
        let compile = || -> Result<Vec<BpfProgram>, seccompiler::Error> {
            Ok(vec![refuse(denied()?, libc::EPERM)?, refuse(hidden(), libc::ENOSYS)?])
        };
        let programs = compile().map_err(io::Error::other).step("compile the system call filter")?;
        Ok(Self { programs })
    }

    /// Needs `no_new_privs`, or the right to do without.
    pub(super) fn apply(&self) -> io::Result<()> {
        self.programs.iter().try_for_each(|program| apply_filter(program).map_err(io::Error::other))
    }
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn denied() -> Result<Rules, seccompiler::Error> {
    let mut rules: Rules = DENIED.into_iter().map(|call| (call, Vec::new())).collect();
    let mut clone = Vec::new();
    for flag in NAMESPACE_FLAGS {
        let flag = u64::from(flag.cast_unsigned());
        let has = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)?;
        clone.push(SeccompRule::new(vec![has])?);
    }
    rules.insert(libc::SYS_clone, clone);
    let mut socket = Vec::new();
    for family in DENIED_FAMILIES {
        let family = u64::from(family.cast_unsigned());
        let is = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, family)?;
        socket.push(SeccompRule::new(vec![is])?);
    }
    rules.insert(libc::SYS_socket, socket);
    Ok(rules)
}

/// The flags of `clone3` lie in memory where a filter cannot look: libraries fall back to `clone` when told that it does
/// not exist.
fn hidden() -> Rules {
    BTreeMap::from([(libc::SYS_clone3, Vec::new())])
}

fn refuse(rules: Rules, errno: i32) -> Result<BpfProgram, seccompiler::Error> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno.cast_unsigned()), arch)?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile() {
        assert_eq!(Filters::compile(true).unwrap().programs.len(), 2);
        assert!(Filters::compile(false).unwrap().programs.is_empty());
    }
}
