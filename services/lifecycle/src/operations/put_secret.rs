//! PutSecret: a tenant secret is sealed and stored; nobody reads it back, services get it for work they hold.

use berth_rpc::lifecycle as proto;
use secrecy::SecretString;

use crate::{
    Lifecycle, authenticate::Admitted, error::Error, guard, hosts, policy::Resource,
    store::secrets::SECRETS_PER_TENANT, to_proto,
};

const MAX_VALUE_BYTES: usize = 64 << 10;
const MAX_NAME_LEN: usize = 64;
const MAX_HOSTS: usize = 32;

/// Creates or replaces. Without hosts the name decides them.
///
/// # Errors
/// NOT_FOUND (TENANT_NOT_FOUND), denied; INVALID_ARGUMENT (SECRET_NAME_INVALID, SECRET_VALUE_INVALID, SECRET_HOST_INVALID);
/// RESOURCE_EXHAUSTED (TOO_MANY_SECRETS).
pub(crate) async fn put_secret(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::PutSecretRequest,
) -> Result<proto::Secret, Error> {
    let tenant = guard::tenant_id(&request.tenant, &call.caller()?.tenant)?;
    let decision = app.policy.authorize(call.subject(), call.action(), Resource::Tenant(&tenant))?;
    let name = name(&request.name)?;
    let hosts = bound_hosts(name, &request.hosts, &app.config.model_host)?;
    let value = value(request.value)?;
    let sealed = app.vault.seal(tenant.as_str(), name, &value)?;
    let trail = decision.trail(call.subject(), &format!("{name} for {}", hosts.join(" ")));
    let stored = app.store.put_secret((tenant.as_str(), name), &hosts, &sealed, &trail).await?;
    let stored = stored.ok_or_else(|| Error::Exhausted {
        reason: "TOO_MANY_SECRETS",
        message: format!("a tenant has at most {SECRETS_PER_TENANT} secrets"),
    })?;
    tracing::info!(%tenant, name, version = stored.version, "secret stored");
    Ok(to_proto::secret(&stored))
}

/// `[a-z][a-z0-9_]{0,63}`
fn name(text: &str) -> Result<&str, Error> {
    let starts = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    let allowed = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if starts && allowed && text.len() <= MAX_NAME_LEN {
        return Ok(text);
    }
    let message = "a secret's name is a lower-case letter, then at most 63 of a-z, 0-9 and _";
    Err(Error::invalid("name", "SECRET_NAME_INVALID", message))
}

/// The value is never part of the message.
fn value(text: String) -> Result<SecretString, Error> {
    let wrong = |message: &str| Err(Error::invalid("value", "SECRET_VALUE_INVALID", message));
    let text = SecretString::from(text);
    let value = secrecy::ExposeSecret::expose_secret(&text);
    if value.is_empty() {
        return wrong("a secret's value is required");
    }
    if value.len() > MAX_VALUE_BYTES {
        return wrong("a secret's value is at most 64 KiB");
    }
    if value.contains('\0') {
        return wrong("a secret's value holds no NUL character");
    }
    Ok(text)
}

fn bound_hosts(name: &str, asked: &[String], model_host: &str) -> Result<Vec<String>, Error> {
    let wrong = |message: &str| Error::invalid("hosts", "SECRET_HOST_INVALID", message);
    if asked.is_empty() {
        let default = match name {
            "github_token" => Some("github.com"),
            "anthropic_api_key" => Some(model_host),
            _ => None,
        };
        return Ok(default.and_then(hosts::parse).into_iter().collect());
    }
    if asked.len() > MAX_HOSTS {
        return Err(wrong("a secret is for at most 32 hosts"));
    }
    let mut bound: Vec<String> = Vec::new();
    for text in asked {
        let host = hosts::parse(text).ok_or_else(|| wrong("a host is written host or host:port"))?;
        if !bound.contains(&host) {
            bound.push(host);
        }
    }
    Ok(bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rule() {
        for good in ["github_token", "a", "a1_", &"a".repeat(64)] {
            assert!(name(good).is_ok(), "{good}");
        }
        for bad in ["", "A", "1a", "_a", "a-b", "a b", "a.b", "ä", &"a".repeat(65)] {
            assert_eq!(name(bad).unwrap_err().reason(), "SECRET_NAME_INVALID", "{bad}");
        }
    }

    #[test]
    fn case_a11_hosts_default_from_the_name_and_are_never_all() {
        let bound = |name, asked: &[&str]| {
            let asked: Vec<String> = asked.iter().map(|host| (*host).to_owned()).collect();
            bound_hosts(name, &asked, "api.anthropic.com")
        };
        assert_eq!(bound("github_token", &[]).unwrap(), ["github.com"]);
        assert_eq!(bound("anthropic_api_key", &[]).unwrap(), ["api.anthropic.com"]);
        assert!(bound("other", &[]).unwrap().is_empty());
        let given = bound("github_token", &["Git.example.org:8443", "git.example.org:8443", "127.0.0.1:3000"]).unwrap();
        assert_eq!(given, ["git.example.org:8443", "127.0.0.1:3000"]);
        for bad in ["", "*", "*.github.com", "https://github.com", "a b", "github.com/x"] {
            assert_eq!(bound("x", &[bad]).unwrap_err().reason(), "SECRET_HOST_INVALID", "{bad}");
        }
    }

    #[test]
    fn case_a08_a_refused_value_is_not_repeated() {
        let long = format!("canary{}", "x".repeat(MAX_VALUE_BYTES));
        for bad in ["", "canary\0", &long] {
            let error = value(bad.to_owned()).unwrap_err();
            assert_eq!(error.reason(), "SECRET_VALUE_INVALID");
            assert!(!format!("{error} {error:?}").contains("canary"));
        }
    }
}
