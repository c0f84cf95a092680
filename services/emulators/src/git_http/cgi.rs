//! Reading the header block of a CGI reply, bounded; the body is left in the reader.

use std::io;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// Longest header block, in bytes.
const MAX_HEADER_BYTES: u64 = 16 * 1024;

/// Status and headers of a CGI reply.
#[derive(Debug, PartialEq)]
pub(super) struct CgiHead {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
}

/// Reads up to and including the empty line.
pub(super) async fn read_head(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<CgiHead> {
    let mut head = CgiHead { status: StatusCode::OK, headers: HeaderMap::new() };
    let mut limited = reader.take(MAX_HEADER_BYTES);
    loop {
        let mut line = Vec::new();
        limited.read_until(b'\n', &mut line).await?;
        let text = String::from_utf8(line).map_err(|_| malformed())?;
        let Some(text) = text.strip_suffix('\n') else {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "cgi reply ended within its headers"));
        };
        let text = text.strip_suffix('\r').unwrap_or(text);
        if text.is_empty() {
            return Ok(head);
        }
        let (name, value) = text.split_once(':').ok_or_else(malformed)?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("status") {
            let code = value.split(' ').next().unwrap_or_default();
            head.status = StatusCode::from_bytes(code.as_bytes()).map_err(|_| malformed())?;
            continue;
        }
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| malformed())?;
        head.headers.append(name, HeaderValue::from_str(value).map_err(|_| malformed())?);
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed cgi header")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn splits_head_from_body() {
        let mut reply: &[u8] = b"Status: 404 Not Found\r\nContent-Type: text/plain\r\n\r\nbody";
        let head = read_head(&mut reply).await.unwrap();
        assert_eq!(head.status, StatusCode::NOT_FOUND);
        assert_eq!(head.headers["content-type"], "text/plain");
        assert_eq!(reply, b"body");
    }

    #[tokio::test]
    async fn refuses_what_is_no_head() {
        let endless = [b'a'; 20_000];
        for mut reply in [&b"Status: 200"[..], b"", b"no colon\r\n\r\n", b"Status: x\r\n\r\n", &endless[..]] {
            assert!(read_head(&mut reply).await.is_err());
        }
    }
}
