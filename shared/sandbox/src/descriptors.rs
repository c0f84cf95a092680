//! Passing open files over a unix socket (SCM_RIGHTS), and sockets whose path is longer than the kernel's 108 bytes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use rustix::fs::{Mode, OFlags};

/// Most descriptors in one message.
const MAX: usize = 5;

/// Sends the four bytes of a frame header together with descriptors.
pub(crate) fn send_header(to: impl AsFd, header: [u8; 4], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let slice = [io::IoSlice::new(&header)];
    let sent = sendmsg::<()>(to.as_fd().as_raw_fd(), &slice, control, MsgFlags::MSG_NOSIGNAL, None)?;
    if sent == header.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives what [`send_header`] sent; `WouldBlock` when nothing is there yet on a non-blocking socket.
pub(crate) fn receive_header(from: impl AsFd) -> io::Result<([u8; 4], Vec<OwnedFd>)> {
    let mut header = [0; 4];
    let mut space = nix::cmsg_space!([RawFd; MAX]);
    let mut slice = [io::IoSliceMut::new(&mut header)];
    let message = recvmsg::<()>(from.as_fd().as_raw_fd(), &mut slice, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: the kernel just installed these descriptors for us and nobody else knows them.
            descriptors.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    if message.bytes != header.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((header, descriptors))
}

/// Opens a directory without following a symlink in its last component.
pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// A short path of an entry of an open directory, valid while the directory is open.
pub(crate) fn short_path(directory: impl AsFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_fd().as_raw_fd()))
}

/// Listens on a new socket in `directory`, replacing a stale one.
pub(crate) fn listen(directory: &Path, name: &str) -> io::Result<UnixListener> {
    let directory = open_directory(directory)?;
    match rustix::fs::unlinkat(&directory, name, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(failure) => return Err(failure.into()),
    }
    UnixListener::bind(short_path(&directory, name))
}

/// Connects to a socket in `directory`.
pub(crate) fn connect(directory: &Path, name: &str) -> io::Result<UnixStream> {
    let directory = open_directory(directory)?;
    UnixStream::connect(short_path(&directory, name))
}
