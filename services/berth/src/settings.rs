//! Settings of the all-in-one binary: flags, environment, one optional TOML file, defaults, in this order of precedence.
//! `--help` documents them; `deploy/berth.example.toml` is the annotated example (a test reads it).

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf};

use clap::Args;
use secrecy::SecretString;
use serde::Deserialize;

/// Where the API listens without settings.
pub(crate) const DEFAULT_LISTEN: &str = "127.0.0.1:7420";
const DEFAULT_DATA_DIR: &str = ".berth";
const DEFAULT_MODEL_URL: &str = "https://api.anthropic.com";

/// As given; everything optional. The TOML file has the same names in snake_case.
#[derive(Args, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// TOML file with any of these settings
    #[arg(long, env = "BERTH_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    pub(crate) config: Option<PathBuf>,

    /// Address of the API: gRPC, gRPC-Web and REST on one port [default: 127.0.0.1:7420]
    #[arg(long, env = "BERTH_LISTEN", value_name = "ADDR:PORT")]
    listen: Option<String>,

    /// Folder of the database, generated keys and local sandboxes [default: ./.berth]
    #[arg(long, env = "BERTH_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// sqlite:PATH or postgres://… [default: a SQLite file in the data folder]
    #[arg(long, env = "BERTH_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    database_url: Option<String>,

    /// URL under which clients reach this server; named in openapi.json [default: http://<listen>]
    #[arg(long, env = "BERTH_PUBLIC_URL", value_name = "URL")]
    public_url: Option<String>,

    /// Key that encrypts tenant secrets at rest: 32 bytes in base64 or hex [default: generated in the data folder]
    #[arg(long, env = "BERTH_MASTER_KEY", value_name = "KEY", hide_env_values = true)]
    master_key: Option<String>,

    /// File holding the master key
    #[arg(long, env = "BERTH_MASTER_KEY_FILE", value_name = "FILE")]
    master_key_file: Option<PathBuf>,

    /// API key of the first administrator (tenant `default`), at least 32 characters [default: generated in the data folder]
    #[arg(long, env = "BERTH_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// File holding the administrator's API key
    #[arg(long, env = "BERTH_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Base URL of the Anthropic Messages API [default: https://api.anthropic.com]
    #[arg(long, env = "BERTH_ANTHROPIC_BASE_URL", value_name = "URL")]
    anthropic_base_url: Option<String>,

    /// Model of runs that name none
    #[arg(long, env = "BERTH_DEFAULT_MODEL", value_name = "MODEL")]
    default_model: Option<String>,

    /// Further host:port pairs that sandboxes may reach, separated by commas
    #[arg(long, env = "BERTH_EGRESS_ALLOW", value_name = "HOST:PORT,…", value_delimiter = ',')]
    egress_allow: Option<Vec<String>>,

    /// 1: repositories on private addresses, also by plain http, may be cloned
    #[arg(long, env = "BERTH_ALLOW_PRIVATE_REPOS", value_name = "0|1")]
    allow_private_repos: Option<String>,

    /// What the local provider may do without, separated by commas: see `docs/operations.md`
    #[arg(long, env = "BERTH_LOCAL_ALLOW", value_name = "NAME,…", value_delimiter = ',')]
    local_allow: Option<Vec<String>>,

    /// OTLP/gRPC collector for traces and metrics
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,

    /// Log filter, as in `info,berth_lifecycle=debug` [default: info]
    #[arg(long, env = "BERTH_LOG", value_name = "FILTER")]
    log: Option<String>,

    /// 1: logs as JSON lines
    #[arg(long, env = "BERTH_LOG_JSON", value_name = "0|1")]
    log_json: Option<String>,
}

/// A secret that is given, in a file, or to be generated.
#[derive(Clone)]
pub(crate) enum KeySource {
    Given(SecretString),
    File(PathBuf),
    Generate,
}

/// Settings after defaults and checks.
pub(crate) struct Resolved {
    pub(crate) listen: SocketAddr,
    pub(crate) data_dir: PathBuf,
    pub(crate) database_url: String,
    pub(crate) public_url: Option<String>,
    pub(crate) master_key: KeySource,
    pub(crate) api_key: KeySource,
    pub(crate) anthropic_base_url: url::Url,
    pub(crate) default_model: Option<String>,
    pub(crate) egress_allow: Vec<(String, u16)>,
    pub(crate) allow_private_repos: bool,
    pub(crate) local_allow: BTreeSet<String>,
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) log: String,
    pub(crate) log_json: bool,
}

/// Everything that is wrong with the settings, at once.
#[derive(Debug, thiserror::Error)]
#[error("settings are not usable:\n  {}", .0.join("\n  "))]
pub(crate) struct Problems(Vec<String>);

impl Settings {
    /// Settings of the demo: everything in one folder, a free port, the demo's own repository reachable.
    pub(crate) fn for_demo(data_dir: PathBuf, model_url: String, local_allow: Vec<String>, log: String) -> Self {
        Self {
            listen: Some("127.0.0.1:0".into()),
            data_dir: Some(data_dir),
            anthropic_base_url: Some(model_url),
            allow_private_repos: Some("1".into()),
            local_allow: Some(local_allow),
            log: Some(log),
            ..Self::default()
        }
    }

    /// Fills what is not given from the file, if one is named.
    pub(crate) fn with_file(self) -> Result<Self, Problems> {
        let Some(path) = self.config.clone() else { return Ok(self) };
        let file: Settings = config::Config::builder()
            .add_source(config::File::from(path.clone()).format(config::FileFormat::Toml))
            .build()
            .and_then(config::Config::try_deserialize)
            .map_err(|error| Problems(vec![format!("{}: {error}", path.display())]))?;
        Ok(self.or(file))
    }

    fn or(self, other: Self) -> Self {
        // A key given one way hides the other way of the file.
        let master_given = self.master_key.is_some() || self.master_key_file.is_some();
        let api_given = self.api_key.is_some() || self.api_key_file.is_some();
        Self {
            config: self.config,
            listen: self.listen.or(other.listen),
            data_dir: self.data_dir.or(other.data_dir),
            database_url: self.database_url.or(other.database_url),
            public_url: self.public_url.or(other.public_url),
            master_key: self.master_key.or(other.master_key.filter(|_| !master_given)),
            master_key_file: self.master_key_file.or(other.master_key_file.filter(|_| !master_given)),
            api_key: self.api_key.or(other.api_key.filter(|_| !api_given)),
            api_key_file: self.api_key_file.or(other.api_key_file.filter(|_| !api_given)),
            anthropic_base_url: self.anthropic_base_url.or(other.anthropic_base_url),
            default_model: self.default_model.or(other.default_model),
            egress_allow: self.egress_allow.or(other.egress_allow),
            allow_private_repos: self.allow_private_repos.or(other.allow_private_repos),
            local_allow: self.local_allow.or(other.local_allow),
            otlp_endpoint: self.otlp_endpoint.or(other.otlp_endpoint),
            log: self.log.or(other.log),
            log_json: self.log_json.or(other.log_json),
        }
    }

    /// Applies defaults and checks everything.
    pub(crate) fn resolve(self) -> Result<Resolved, Problems> {
        let mut problems = Vec::new();
        let data_dir = self.data_dir.unwrap_or_else(|| PathBuf::from(DEFAULT_DATA_DIR));
        let data_dir = std::path::absolute(&data_dir).unwrap_or(data_dir);
        let listen = self.listen.unwrap_or_else(|| DEFAULT_LISTEN.to_owned());
        let listen = listen.parse().unwrap_or_else(|_| {
            problems.push(format!("BERTH_LISTEN: `{listen}` is not ADDR:PORT"));
            SocketAddr::from(([127, 0, 0, 1], 0))
        });
        let database_url =
            self.database_url.unwrap_or_else(|| format!("sqlite:{}", data_dir.join("berth.sqlite").display()));
        if !["sqlite:", "postgres:", "postgresql:"].iter().any(|scheme| database_url.starts_with(scheme)) {
            problems.push("BERTH_DATABASE_URL: must begin with sqlite: or postgres://".to_owned());
        }
        let model_url = self.anthropic_base_url.unwrap_or_else(|| DEFAULT_MODEL_URL.to_owned());
        let anthropic_base_url = http_url("BERTH_ANTHROPIC_BASE_URL", &model_url, &mut problems);
        if let Some(public) = &self.public_url {
            http_url("BERTH_PUBLIC_URL", public, &mut problems);
        }
        if let Some(otlp) = &self.otlp_endpoint {
            http_url("OTEL_EXPORTER_OTLP_ENDPOINT", otlp, &mut problems);
        }
        let egress_allow = not_blank(self.egress_allow)
            .filter_map(|entry| {
                let parsed = host_port(&entry);
                if parsed.is_none() {
                    problems.push(format!("BERTH_EGRESS_ALLOW: `{entry}` is not HOST:PORT"));
                }
                parsed
            })
            .collect();
        let api_key = key_source("BERTH_API_KEY", self.api_key, self.api_key_file, &mut problems);
        if let KeySource::Given(key) = &api_key
            && secrecy::ExposeSecret::expose_secret(key).len() < 32
        {
            problems.push("BERTH_API_KEY: must have at least 32 characters".to_owned());
        }
        let resolved = Resolved {
            listen,
            data_dir,
            database_url,
            public_url: self.public_url,
            master_key: key_source("BERTH_MASTER_KEY", self.master_key, self.master_key_file, &mut problems),
            api_key,
            anthropic_base_url,
            default_model: self.default_model.filter(|model| !model.is_empty()),
            egress_allow,
            allow_private_repos: switch("BERTH_ALLOW_PRIVATE_REPOS", self.allow_private_repos, &mut problems),
            local_allow: not_blank(self.local_allow).collect(),
            otlp_endpoint: self.otlp_endpoint,
            log: self.log.unwrap_or_default(),
            log_json: switch("BERTH_LOG_JSON", self.log_json, &mut problems),
        };
        if problems.is_empty() { Ok(resolved) } else { Err(Problems(problems)) }
    }
}

fn not_blank(list: Option<Vec<String>>) -> impl Iterator<Item = String> {
    list.unwrap_or_default().into_iter().map(|s| s.trim().to_owned()).filter(|s| !s.is_empty())
}

fn switch(name: &str, value: Option<String>, problems: &mut Vec<String>) -> bool {
    match value.as_deref() {
        None | Some("" | "0" | "false" | "no" | "off") => false,
        Some("1" | "true" | "yes" | "on") => true,
        Some(other) => {
            problems.push(format!("{name}: `{other}` is neither 1 nor 0"));
            false
        }
    }
}

fn http_url(name: &str, text: &str, problems: &mut Vec<String>) -> url::Url {
    match url::Url::parse(text) {
        Ok(url)
            if matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none() =>
        {
            url
        }
        _ => {
            problems.push(format!("{name}: must be an http or https URL without credentials"));
            url::Url::parse(DEFAULT_MODEL_URL).expect("the default is a URL")
        }
    }
}

fn host_port(entry: &str) -> Option<(String, u16)> {
    let (host, port) = entry.rsplit_once(':')?;
    let plain = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    plain.then(|| port.parse().ok().map(|port| (host.to_ascii_lowercase(), port)))?
}

fn key_source(name: &str, value: Option<String>, file: Option<PathBuf>, problems: &mut Vec<String>) -> KeySource {
    match (value.filter(|v| !v.is_empty()), file) {
        (Some(_), Some(_)) => {
            problems.push(format!("{name} and {name}_FILE are both set"));
            KeySource::Generate
        }
        (Some(value), None) => KeySource::Given(value.into()),
        (None, Some(path)) => KeySource::File(path),
        (None, None) => KeySource::Generate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_reported_at_once() {
        let settings = Settings {
            listen: Some("nowhere".into()),
            database_url: Some("mysql://x".into()),
            anthropic_base_url: Some("ftp://x".into()),
            egress_allow: Some(vec!["host".into()]),
            api_key: Some("short".into()),
            allow_private_repos: Some("maybe".into()),
            master_key: Some("a".into()),
            master_key_file: Some("b".into()),
            ..Settings::default()
        };
        let Err(Problems(problems)) = settings.resolve() else { panic!("accepted") };
        assert_eq!(problems.len(), 7, "{problems:#?}");
    }

    #[test]
    fn the_annotated_example_is_a_valid_file_and_names_every_setting() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/berth.example.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let settings = Settings { config: Some(path), ..Settings::default() }.with_file().unwrap();
        assert!(settings.resolve().is_ok());
        let command = <Settings as Args>::augment_args(clap::Command::new("berth"));
        for argument in command.get_arguments().filter(|a| a.get_id() != "config" && a.get_id() != "help") {
            assert!(text.contains(&format!("{} =", argument.get_id())), "{} is not in the example", argument.get_id());
        }
    }

    #[test]
    fn a_given_key_hides_the_files_other_form() {
        let file = Settings { api_key_file: Some("x".into()), ..Settings::default() };
        let merged = Settings { api_key: Some("k".repeat(32)), ..Settings::default() }.or(file);
        assert!(matches!(merged.resolve().map(|r| r.api_key), Ok(KeySource::Given(_))));
    }
}
