//! The bodies of a forwarded call: opaque gRPC frames whose declared lengths are checked as they pass, and an answer that
//! always ends in a status, whatever ends it. Messages are never decoded or buffered here.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Status, body::Body};

use crate::{error::Error, observe::Observation};

/// Compression flag and big-endian length in front of each message.
const PREFIX: usize = 5;

/// Follows the frames of a body.
#[derive(Debug)]
struct Frames {
    limit: usize,
    prefix: [u8; PREFIX],
    /// Bytes of the prefix seen.
    seen: usize,
    /// Bytes of the message still to come.
    left: usize,
}

impl Frames {
    fn new(limit: usize) -> Self {
        Self { limit, prefix: [0; PREFIX], seen: 0, left: 0 }
    }

    fn pass(&mut self, mut data: &[u8]) -> Result<(), Error> {
        while !data.is_empty() {
            let skipped = self.left.min(data.len());
            self.left -= skipped;
            data = &data[skipped..];
            let taken = data.len().min(PREFIX - self.seen);
            self.prefix[self.seen..self.seen + taken].copy_from_slice(&data[..taken]);
            self.seen += taken;
            data = &data[taken..];
            if self.seen == PREFIX {
                let [_, length @ ..] = self.prefix;
                self.left = u32::from_be_bytes(length) as usize;
                self.seen = 0;
                if self.left > self.limit {
                    return Err(Error::MessageTooLarge(self.limit));
                }
            }
        }
        Ok(())
    }
}

/// What the client sends, on its way up.
pub(crate) struct RequestBody {
    inner: Body,
    frames: Frames,
    oversized: Arc<AtomicBool>,
}

impl RequestBody {
    /// `oversized` is set when the body was cut for its size.
    pub(crate) fn new(inner: Body, limit: usize, oversized: Arc<AtomicBool>) -> Self {
        Self { inner, frames: Frames::new(limit), oversized }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && let Err(error) = self.frames.pass(data)
        {
            self.oversized.store(true, Ordering::Release);
            return Poll::Ready(Some(Err(error.into())));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

/// What may end an answer before its upstream does.
pub(crate) struct Ends {
    deadline: Option<Pin<Box<Sleep>>>,
    stop: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    oversized: Arc<AtomicBool>,
    upstream: &'static str,
}

impl Ends {
    /// `upstream` is named when its answer breaks off.
    pub(crate) fn new(
        deadline: Option<Instant>,
        stop: Option<CancellationToken>,
        oversized: Arc<AtomicBool>,
        upstream: &'static str,
    ) -> Self {
        Self {
            deadline: deadline.map(|at| Box::pin(tokio::time::sleep_until(at))),
            stop: stop.map(|token| Box::pin(token.cancelled_owned())),
            oversized,
            upstream,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Option<Error> {
        if self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready()) {
            return Some(Error::DeadlineExceeded);
        }
        if self.stop.as_mut().is_some_and(|stop| stop.as_mut().poll(cx).is_ready()) {
            return Some(Error::Stopping);
        }
        None
    }
}

/// What the upstream sends, on its way down.
pub(crate) struct ResponseBody {
    /// None once the answer has ended; dropping it cancels the upstream.
    inner: Option<Body>,
    frames: Frames,
    ends: Ends,
    observation: Observation,
}

impl ResponseBody {
    pub(crate) fn new(inner: Body, limit: usize, ends: Ends, observation: Observation) -> Self {
        Self { inner: Some(inner), frames: Frames::new(limit), ends, observation }
    }

    fn end(&mut self, error: Error) -> Frame<Bytes> {
        self.inner = None;
        let status = Status::from(error);
        self.observation.ended(status.code());
        Frame::trailers(trailers(&status))
    }

    fn broken(&self, status: &Status) -> Error {
        if self.ends.oversized.load(Ordering::Acquire) {
            return Error::MessageTooLarge(self.frames.limit);
        }
        Error::of_transport(status, self.ends.upstream)
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        if let Some(error) = this.ends.poll(cx) {
            return Poll::Ready(Some(Ok(this.end(error))));
        }
        let frame = match std::task::ready!(Pin::new(inner).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(status)) => {
                let error = this.broken(&status);
                return Poll::Ready(Some(Ok(this.end(error))));
            }
            None => {
                this.inner = None;
                return Poll::Ready(None);
            }
        };
        if let Some(data) = frame.data_ref()
            && let Err(error) = this.frames.pass(data)
        {
            return Poll::Ready(Some(Ok(this.end(error))));
        }
        if let Some(trailers) = frame.trailers_ref()
            && let Some(code) = code(trailers)
        {
            this.observation.ended(code);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    /// Keeps a trailers-only answer one: as headers and an empty data frame, gRPC's C core takes it for a broken stream.
    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(HttpBody::is_end_stream)
    }
}

/// The code in the headers or trailers of an answer.
pub(crate) fn code(headers: &HeaderMap) -> Option<tonic::Code> {
    Some(tonic::Code::from_bytes(headers.get(Status::GRPC_STATUS)?.as_bytes()))
}

fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if status.add_header(&mut trailers).is_err() {
        trailers.insert(Status::GRPC_STATUS, http::HeaderValue::from_static("13"));
    }
    trailers
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body(lengths: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for length in lengths {
            bytes.push(0);
            bytes.extend((*length as u32).to_be_bytes());
            bytes.extend(std::iter::repeat_n(0xff, *length));
        }
        bytes
    }

    proptest! {
        /// However the bytes are cut, exactly the messages over the limit are refused.
        #[test]
        fn lengths_are_seen_however_the_bytes_are_cut(
            lengths in prop::collection::vec(0usize..40, 0..8),
            piece in 1usize..17,
        ) {
            let mut frames = Frames::new(20);
            let refused = body(&lengths).chunks(piece).any(|chunk| frames.pass(chunk).is_err());
            prop_assert_eq!(refused, lengths.iter().any(|length| *length > 20));
        }
    }
}
