//! The network of a sandbox: loopback, and the door to the broker's egress proxy on it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};

use super::{Failure, Step};

/// Port of the egress proxy inside; `inside::PROXY` names it.
const PROXY_PORT: u16 = 3128;

/// Brings loopback up and listens on it.
pub(super) fn set_up() -> Result<TcpListener, Failure> {
    loopback_up().step("bring the loopback interface up")?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PROXY_PORT));
    let listener = TcpListener::bind(address).step("listen for the egress proxy")?;
    listener.set_nonblocking(true).step("listen for the egress proxy")?;
    Ok(listener)
}

fn loopback_up() -> io::Result<()> {
    let socket: OwnedFd = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: all-zero is a valid value of this plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is the structure this call expects and outlives it.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
