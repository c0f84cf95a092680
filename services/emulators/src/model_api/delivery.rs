//! Sending a body as planned: in order, with at most one pause or one broken connection.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;

/// The connection is broken this long after the last byte, so that the server has written that byte out before.
const FLUSH: Duration = Duration::from_millis(20);

/// One thing done while the body is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Send(Bytes),
    Wait(Duration),
    /// Ends the connection without ending the body.
    Break,
}

/// `chunks`, ended by a broken connection after exactly `after_bytes` bytes (or after all of them).
pub(super) fn cut(chunks: Vec<Bytes>, after_bytes: usize) -> Vec<Step> {
    let (before, _) = split(chunks, after_bytes);
    before.into_iter().map(Step::Send).chain([Step::Break]).collect()
}

/// `chunks`, interrupted by a pause after exactly `after_bytes` bytes.
pub(super) fn paused(chunks: Vec<Bytes>, after_bytes: usize, delay: Duration) -> Vec<Step> {
    let (before, after) = split(chunks, after_bytes);
    let sends = |chunks: Vec<Bytes>| chunks.into_iter().map(Step::Send);
    sends(before).chain([Step::Wait(delay)]).chain(sends(after)).collect()
}

/// Whole chunks until at least `after_bytes` bytes, then `last` instead of the rest.
pub(super) fn replaced(chunks: Vec<Bytes>, after_bytes: usize, last: Bytes) -> Vec<Step> {
    let mut sent = 0;
    let mut steps = Vec::new();
    for chunk in chunks {
        if sent >= after_bytes {
            break;
        }
        sent += chunk.len();
        steps.push(Step::Send(chunk));
    }
    steps.push(Step::Send(last));
    steps
}

/// The chunks as they are.
pub(super) fn whole(chunks: Vec<Bytes>) -> Vec<Step> {
    chunks.into_iter().map(Step::Send).collect()
}

/// A streamed body that follows the steps; one HTTP chunk per `Send`.
pub(super) fn body(steps: Vec<Step>) -> Body {
    Body::from_stream(stream::iter(steps).filter_map(|step| async move {
        match step {
            Step::Send(chunk) => Some(Ok(chunk)),
            Step::Wait(delay) => {
                tokio::time::sleep(delay).await;
                None
            }
            Step::Break => {
                tokio::time::sleep(FLUSH).await;
                Some(Err("connection cut by the script"))
            }
        }
    }))
}

fn split(chunks: Vec<Bytes>, at: usize) -> (Vec<Bytes>, Vec<Bytes>) {
    let mut left = at;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for mut chunk in chunks {
        let taken = chunk.split_to(left.min(chunk.len()));
        left -= taken.len();
        before.extend((!taken.is_empty()).then_some(taken));
        after.extend((!chunk.is_empty()).then_some(chunk));
    }
    (before, after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks() -> Vec<Bytes> {
        vec![Bytes::from_static(b"abc"), Bytes::from_static(b"def")]
    }

    fn shown(steps: &[Step]) -> String {
        let step = |step: &Step| match step {
            Step::Send(chunk) => String::from_utf8_lossy(chunk).into_owned(),
            Step::Wait(delay) => format!("wait {}", delay.as_millis()),
            Step::Break => "break".to_owned(),
        };
        steps.iter().map(step).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn steps_land_on_the_byte() {
        assert_eq!(shown(&whole(chunks())), "abc|def");
        assert_eq!(shown(&cut(chunks(), 0)), "break");
        assert_eq!(shown(&cut(chunks(), 4)), "abc|d|break");
        assert_eq!(shown(&cut(chunks(), 99)), "abc|def|break");
        assert_eq!(shown(&paused(chunks(), 0, Duration::from_millis(5))), "wait 5|abc|def");
        assert_eq!(shown(&paused(chunks(), 2, Duration::from_millis(5))), "ab|wait 5|c|def");
        assert_eq!(shown(&replaced(chunks(), 1, Bytes::from_static(b"x"))), "abc|x");
        assert_eq!(shown(&replaced(chunks(), 0, Bytes::from_static(b"x"))), "x");
    }
}
