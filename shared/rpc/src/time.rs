//! Conversions between protobuf's time types and ours: `Time` (microseconds since the epoch) and `Duration`.

use std::time::Duration;

use berth_domain::time::Time;

/// Microsecond precision; nanoseconds below it are always zero.
pub fn time_to_proto(time: Time) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: time.0.div_euclid(1_000_000),
        nanos: (time.0.rem_euclid(1_000_000) * 1000) as i32,
    }
}

/// Sub-microsecond digits are cut; out-of-range seconds saturate.
pub fn time_from_proto(time: &prost_types::Timestamp) -> Time {
    Time(time.seconds.saturating_mul(1_000_000).saturating_add(i64::from(time.nanos) / 1000))
}

/// Durations beyond 2^63 seconds do not occur.
pub fn duration_to_proto(duration: Duration) -> prost_types::Duration {
    prost_types::Duration { seconds: duration.as_secs() as i64, nanos: duration.subsec_nanos() as i32 }
}

/// Negative durations become zero.
pub fn duration_from_proto(duration: &prost_types::Duration) -> Duration {
    if duration.seconds < 0 || duration.nanos < 0 {
        return Duration::ZERO;
    }
    Duration::new(duration.seconds as u64, duration.nanos.clamp(0, 999_999_999) as u32)
}
