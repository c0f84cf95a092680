//! The contract in Rust: generated messages, clients and servers, the descriptor set, and the only place that knows how
//! an error kind travels over gRPC and HTTP. No decisions live here.

pub mod access;
pub mod metadata;
pub mod status;
mod time;
#[cfg(test)]
mod wire;

pub use time::{duration_from_proto, duration_to_proto, time_from_proto, time_to_proto};

/// Package tree as protoc names it: `berth::<package>::v1`.
#[allow(missing_docs, clippy::all, unreachable_pub)]
pub mod berth {
    /// Method and field options.
    pub mod options {
        /// Version 1.
        pub mod v1 {
            tonic::include_proto!("berth.options.v1");
        }
    }
    /// Runs, secrets, keys, work and the event log.
    pub mod lifecycle {
        /// Version 1.
        pub mod v1 {
            tonic::include_proto!("berth.lifecycle.v1");
        }
    }
    /// Sandboxes and providers.
    pub mod broker {
        /// Version 1.
        pub mod v1 {
            tonic::include_proto!("berth.broker.v1");
        }
    }
    /// Conversations.
    pub mod sessions {
        /// Version 1.
        pub mod v1 {
            tonic::include_proto!("berth.sessions.v1");
        }
    }
}

mod redacted {
    include!(concat!(env!("OUT_DIR"), "/redacted.rs"));
}

pub use berth::{broker::v1 as broker, lifecycle::v1 as lifecycle, options::v1 as options, sessions::v1 as sessions};

/// Encoded `FileDescriptorSet` of every Berth proto with imports, comments and extension options.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The descriptors as a pool, built once.
pub fn pool() -> &'static prost_reflect::DescriptorPool {
    static POOL: std::sync::OnceLock<prost_reflect::DescriptorPool> = std::sync::OnceLock::new();
    POOL.get_or_init(|| {
        prost_reflect::DescriptorPool::decode(DESCRIPTORS).expect("descriptors were written by the build script")
    })
}
