//! Path templates of `google.api.http`: literal segments, `{field}` segments and a verb (`/v1/agent-runs/{run_id}:cancel`).
//! A `:` in the last segment of a request always begins a verb; one that belongs to a value is sent as `%3A`.

use percent_encoding::percent_decode_str;

/// A parsed template.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Template {
    segments: Vec<Segment>,
    verb: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    /// Path of the field it fills.
    Variable(String),
}

/// A template this gateway cannot serve.
#[derive(Debug, thiserror::Error)]
#[error("path template {0} is not literal segments, {{field}} segments and a verb")]
pub struct TemplateError(String);

/// A request's path, taken apart once.
#[derive(Debug)]
pub(crate) struct Path {
    segments: Vec<String>,
    verb: Option<String>,
}

impl Template {
    pub(crate) fn parse(text: &str) -> Result<Self, TemplateError> {
        let refused = || TemplateError(text.to_owned());
        let rest = text.strip_prefix('/').ok_or_else(refused)?;
        // No field name contains a colon, so the last one begins the verb.
        let (path, verb) = match rest.rsplit_once(':') {
            Some((path, verb)) => (path, Some(verb.to_owned())),
            None => (rest, None),
        };
        let segments = path.split('/').map(|text| segment(text).ok_or_else(refused)).collect::<Result<_, _>>()?;
        if verb.as_deref().is_some_and(|verb| !plain(verb)) { Err(refused()) } else { Ok(Self { segments, verb }) }
    }

    /// The variables' fields and values when `path` fits.
    pub(crate) fn matches(&self, path: &Path) -> Option<Vec<(&str, String)>> {
        if self.segments.len() != path.segments.len() || self.verb != path.verb {
            return None;
        }
        let mut variables = Vec::new();
        for (segment, text) in self.segments.iter().zip(&path.segments) {
            match segment {
                Segment::Literal(literal) if literal == text => {}
                Segment::Literal(_) => return None,
                Segment::Variable(_) if text.is_empty() => return None,
                Segment::Variable(field) => variables.push((field.as_str(), text.clone())),
            }
        }
        Some(variables)
    }

    /// Fields the variables fill.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Literal(_) => None,
            Segment::Variable(field) => Some(field.as_str()),
        })
    }
}

impl std::fmt::Display for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for segment in &self.segments {
            match segment {
                Segment::Literal(literal) => write!(f, "/{literal}")?,
                Segment::Variable(field) => write!(f, "/{{{field}}}")?,
            }
        }
        match &self.verb {
            Some(verb) => write!(f, ":{verb}"),
            None => Ok(()),
        }
    }
}

impl Path {
    /// None when a segment does not decode to UTF-8.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let path = path.strip_prefix('/')?;
        let (body, verb) = match path.rsplit_once(':') {
            Some((body, verb)) if !verb.contains('/') => (body, Some(verb)),
            _ => (path, None),
        };
        let segments = body.split('/').map(decode).collect::<Option<_>>()?;
        let verb = match verb {
            Some(verb) => Some(decode(verb)?),
            None => None,
        };
        Some(Self { segments, verb })
    }
}

fn decode(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(|text| text.into_owned())
}

fn segment(text: &str) -> Option<Segment> {
    match text.strip_prefix('{') {
        Some(rest) => {
            let field = rest.strip_suffix('}')?;
            let named = field.split('.').all(|name| !name.is_empty() && name.bytes().all(is_name));
            named.then(|| Segment::Variable(field.to_owned()))
        }
        None => plain(text).then(|| Segment::Literal(text.to_owned())),
    }
}

fn plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| is_name(byte) || matches!(byte, b'-' | b'.'))
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(template: &str, path: &str) -> Option<Vec<(String, String)>> {
        let template = Template::parse(template).unwrap();
        let found = template.matches(&Path::parse(path)?)?;
        Some(found.into_iter().map(|(field, value)| (field.to_owned(), value)).collect())
    }

    #[test]
    fn templates_match_whole_paths() {
        let one = |value: &str| Some(vec![("run_id".to_owned(), value.to_owned())]);
        assert_eq!(variables("/v1/agent-runs/{run_id}", "/v1/agent-runs/run-1"), one("run-1"));
        assert_eq!(variables("/v1/agent-runs/{run_id}:cancel", "/v1/agent-runs/run-1:cancel"), one("run-1"));
        assert_eq!(variables("/v1/agent-runs/{run_id}", "/v1/agent-runs/run-1:cancel"), None);
        assert_eq!(variables("/v1/agent-runs/{run_id}", "/v1/agent-runs/run-1%3Acancel"), one("run-1:cancel"));
        assert_eq!(variables("/v1/agent-runs/{run_id}", "/v1/agent-runs/a%2Fb"), one("a/b"));
        assert_eq!(variables("/v1/a/{run_id}/x", "/v1/a/r:1/x"), one("r:1"));
        for path in
            ["/v1/agent-runs", "/v1/agent-runs/", "/v1/agent-runs/a/b", "/v1//agent-runs/a", "/v1/agent-runs/%ff"]
        {
            assert_eq!(variables("/v1/agent-runs/{run_id}", path), None, "{path}");
        }
    }

    #[test]
    fn what_cannot_be_served_is_refused() {
        for text in ["", "v1", "/v1/{a=b/*}", "/v1/*", "/v1/**", "/v1/{a", "/v1/{}", "/v1/{a..b}", "/v1//x", "/v1:"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
        for text in ["/v1/agent-runs/{run_id}:retry-deletion", "/api/tenants/{tenant}/secrets/{name}", "/v1/{a.b_c}"] {
            assert_eq!(Template::parse(text).unwrap().to_string(), text);
        }
    }
}
