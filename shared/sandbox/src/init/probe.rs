//! Tries what the kernel offers, each attempt in a forked process of its own, and prints the answers as JSON.

use std::io::{Read, Write};

use nix::sched::CloneFlags;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

use super::seccomp::Filters;
use super::{Failure, Step, filesystem, unshare};
use crate::kernel::Attempts;

pub(super) fn run() -> i32 {
    let user = attempt(|| unshare::all(true, false));
    let with_user = user.is_none();
    let attempts = Attempts {
        plain: attempt(|| unshare::all(false, false)),
        network: attempt(move || {
            if with_user {
                unshare::all(true, true)
            } else {
                nix::sched::unshare(CloneFlags::CLONE_NEWNET).step("make the network namespace")
            }
        }),
        mount_attributes: attempt(move || {
            unshare::all(with_user, false)?;
            filesystem::probe_attributes()
        }),
        seccomp: attempt(|| Filters::compile(true)?.apply().step("apply the filter")),
        user,
    };
    let printed = serde_json::to_vec(&attempts).is_ok_and(|bytes| std::io::stdout().write_all(&bytes).is_ok());
    if printed { 0 } else { 1 }
}

/// `None` when it worked, else what the kernel said.
fn attempt(work: impl FnOnce() -> Result<(), Failure>) -> Option<String> {
    let (mut answer, mut say) = match std::io::pipe() {
        Ok(pipe) => pipe,
        Err(failure) => return Some(failure.to_string()),
    };
    // SAFETY: single-threaded, so the child may do anything.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            drop(answer);
            let text = match work() {
                Ok(()) => "ok".to_owned(),
                Err(failure) => format!("{}: {}", failure.step, failure.source),
            };
            let _ = say.write_all(text.as_bytes());
            // SAFETY: ends this process without running the parent's exit code.
            unsafe { libc::_exit(0) }
        }
        Ok(ForkResult::Parent { child }) => {
            drop(say);
            let mut text = String::new();
            let _ = answer.read_to_string(&mut text);
            let _ = waitpid(child, None);
            match text.as_str() {
                "ok" => None,
                "" => Some("the attempt was killed".to_owned()),
                _ => Some(text),
            }
        }
        Err(failure) => Some(failure.to_string()),
    }
}
