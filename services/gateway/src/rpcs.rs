//! Which RPCs are public and which upstream serves each, read from the descriptors once. Nothing is decoded here.

use std::{collections::HashMap, sync::Arc};

use berth_rpc::access;
use berth_serve::peer::ServiceChannel;
use http::uri::PathAndQuery;
use prost_reflect::MethodDescriptor;

/// Public services by full name. An RPC of theirs that is for services only (its access option names some) is left out.
pub(crate) const PUBLIC: [(&str, Upstream); 5] = [
    ("berth.lifecycle.v1.RunService", Upstream::Lifecycle),
    ("berth.lifecycle.v1.SecretService", Upstream::Lifecycle),
    ("berth.lifecycle.v1.KeyService", Upstream::Lifecycle),
    ("berth.sessions.v1.SessionService", Upstream::Sessions),
    ("berth.broker.v1.ProviderService", Upstream::Broker),
];

/// A service behind the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upstream {
    Lifecycle,
    Sessions,
    Broker,
}

impl Upstream {
    pub(crate) const ALL: [Self; 3] = [Self::Lifecycle, Self::Sessions, Self::Broker];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lifecycle => "lifecycle",
            Self::Sessions => "sessions",
            Self::Broker => "sandbox-broker",
        }
    }
}

/// Channels to the services behind the gateway.
#[derive(Clone, Debug)]
pub struct Upstreams {
    /// Carries the gateway's service key.
    pub lifecycle: ServiceChannel,
    /// Needs no key: sessions passes the caller on and verifies nothing.
    pub sessions: ServiceChannel,
    /// Needs no key: the broker passes the caller on and verifies nothing.
    pub broker: ServiceChannel,
}

impl Upstreams {
    pub(crate) fn channel(&self, upstream: Upstream) -> &ServiceChannel {
        match upstream {
            Upstream::Lifecycle => &self.lifecycle,
            Upstream::Sessions => &self.sessions,
            Upstream::Broker => &self.broker,
        }
    }
}

/// One public RPC.
#[derive(Debug)]
pub(crate) struct Rpc {
    pub(crate) method: MethodDescriptor,
    pub(crate) path: PathAndQuery,
    pub(crate) upstream: Upstream,
}

impl Rpc {
    /// Neither side streams.
    pub(crate) fn is_unary(&self) -> bool {
        !self.method.is_client_streaming() && !self.method.is_server_streaming()
    }
}

/// What a gRPC path names.
pub(crate) enum Found<'a> {
    Public(&'a Arc<Rpc>),
    /// Berth has it, for its own services.
    Internal,
    /// Not one of Berth's.
    Unknown,
}

/// The table of RPCs.
#[derive(Debug)]
pub(crate) struct Rpcs {
    by_path: HashMap<String, Option<Arc<Rpc>>>,
}

impl Rpcs {
    pub(crate) fn from_descriptors() -> Self {
        let row = |method: MethodDescriptor| {
            let path = access::path(&method);
            let rpc = public(method, &path).map(Arc::new);
            (path, rpc)
        };
        Self { by_path: access::methods().map(row).collect() }
    }

    pub(crate) fn find(&self, path: &str) -> Found<'_> {
        match self.by_path.get(path) {
            Some(Some(rpc)) => Found::Public(rpc),
            Some(None) => Found::Internal,
            None => Found::Unknown,
        }
    }

    /// Every public RPC, by path.
    pub(crate) fn public(&self) -> Vec<Arc<Rpc>> {
        let mut rpcs: Vec<_> = self.by_path.values().flatten().cloned().collect();
        rpcs.sort_by(|a, b| a.path.as_str().cmp(b.path.as_str()));
        rpcs
    }
}

fn public(method: MethodDescriptor, path: &str) -> Option<Rpc> {
    let service = method.parent_service();
    let (_, upstream) = PUBLIC.into_iter().find(|(name, _)| *name == service.full_name())?;
    // An RPC without the option is offered to nobody.
    let open = access::access(path).is_some_and(|access| access.services.is_empty());
    open.then(|| Rpc { method, path: path.parse().expect("protobuf names are path characters"), upstream })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_services_only_is_not_public() {
        let rpcs = Rpcs::from_descriptors();
        for path in [
            "/berth.lifecycle.v1.SecretService/ResolveSecret",
            "/berth.lifecycle.v1.WorkService/Claim",
            "/berth.lifecycle.v1.LogService/Read",
            "/berth.lifecycle.v1.IdentityService/Authenticate",
            "/berth.broker.v1.SandboxService/Exec",
        ] {
            assert!(matches!(rpcs.find(path), Found::Internal), "{path}");
        }
        assert!(matches!(rpcs.find("/berth.lifecycle.v1.RunService/CreateRun"), Found::Public(_)));
        assert!(matches!(rpcs.find("/berth.lifecycle.v1.RunService/Nonsense"), Found::Unknown));
        for (service, _) in PUBLIC {
            assert!(berth_rpc::pool().get_service_by_name(service).is_some(), "{service}");
        }
    }
}
