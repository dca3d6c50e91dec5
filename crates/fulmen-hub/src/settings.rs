//! Server, token and cache folder.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::HubError;

/// The default server, if `HF_ENDPOINT` is not set.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Server, token and cache folder.
#[derive(Clone)]
pub struct Settings {
    /// The server URL, without a trailing slash.
    pub endpoint: String,
    /// The access token.
    pub token: Option<String>,
    /// The cache folder, with a folder for each repository.
    pub cache: PathBuf,
    /// A PEM file of CA certificates that replace the built-in ones.
    pub certificates: Option<PathBuf>,
}

/// Values that take the place of those in the environment.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The server URL.
    pub endpoint: Option<String>,
    /// A file with the access token. It must exist.
    pub token_file: Option<PathBuf>,
    /// The cache folder.
    pub cache: Option<PathBuf>,
}

impl Settings {
    /// Reads the environment variables of the hub's own tools: `HF_ENDPOINT`, `HF_TOKEN` (or the token that
    /// their login stored), `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`; and `SSL_CERT_FILE`.
    pub fn from_env() -> Result<Settings, HubError> {
        Settings::from_env_with(&Overrides::default())
    }

    /// Reads the environment as [`Settings::from_env`] does, except for what the overrides say.
    pub fn from_env_with(overrides: &Overrides) -> Result<Settings, HubError> {
        Settings::from_vars(|name| env::var_os(name).filter(|value| !value.is_empty()), overrides)
    }

    fn from_vars(
        var: impl Fn(&str) -> Option<OsString>,
        overrides: &Overrides,
    ) -> Result<Settings, HubError> {
        let text = |name: &'static str| match var(name).map(OsString::into_string) {
            Some(Ok(value)) => Ok(Some(value.trim().to_owned()).filter(|value| !value.is_empty())),
            Some(Err(_)) => Err(HubError::Variable { name, problem: "is not UTF-8" }),
            None => Ok(None),
        };
        let endpoint = match &overrides.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => text("HF_ENDPOINT")?.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()),
        };
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            return Err(HubError::Variable {
                name: "HF_ENDPOINT",
                problem: "must start with https:// or http://",
            });
        }
        let home = var("HF_HOME").map(PathBuf::from).or_else(|| {
            let caches = var("XDG_CACHE_HOME").map(PathBuf::from);
            let user = var("HOME").or_else(|| var("USERPROFILE")).map(PathBuf::from);
            caches.or_else(|| Some(user?.join(".cache"))).map(|caches| caches.join("huggingface"))
        });
        let cache = overrides.cache.clone().or_else(|| var("HF_HUB_CACHE").map(PathBuf::from));
        let cache = cache.or_else(|| Some(home.as_ref()?.join("hub")));
        let missing = HubError::Variable { name: "HF_HOME", problem: "is not set, and neither is HOME" };
        let token = match (&overrides.token_file, text("HF_TOKEN")?) {
            (Some(file), _) => Some(std::fs::read_to_string(file).map_err(HubError::io(file))?)
                .map(|token| token.trim().to_owned())
                .filter(|token| !token.is_empty()),
            (None, Some(token)) => Some(token),
            (None, None) => {
                let file =
                    var("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join("token")));
                // Public models need no token.
                let kept = file.and_then(|file| std::fs::read_to_string(file).ok());
                kept.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty())
            }
        };
        if token.as_ref().is_some_and(|token| !token.chars().all(|c| c.is_ascii_graphic())) {
            return Err(HubError::Variable {
                name: "HF_TOKEN",
                problem: "contains characters that are invalid in a token",
            });
        }
        Ok(Settings {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            cache: cache.ok_or(missing)?,
            certificates: var("SSL_CERT_FILE").map(PathBuf::from),
        })
    }
}

// The token is secret and must not be printed.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Settings { endpoint, cache, .. } = self;
        f.debug_struct("Settings").field("endpoint", endpoint).field("cache", cache).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(vars: &[(&str, &str)]) -> Result<Settings, HubError> {
        settings_with(vars, &Overrides::default())
    }

    fn settings_with(vars: &[(&str, &str)], overrides: &Overrides) -> Result<Settings, HubError> {
        let var = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into());
        Settings::from_vars(var, overrides)
    }

    #[test]
    fn folders_are_those_of_the_hubs_own_tools() {
        let cache = |vars: &[(&str, &str)]| settings(vars).unwrap().cache;
        assert_eq!(cache(&[("HOME", "/h")]), PathBuf::from("/h/.cache/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), PathBuf::from("/x/huggingface/hub"));
        assert_eq!(cache(&[("HF_HOME", "/hf"), ("XDG_CACHE_HOME", "/x")]), PathBuf::from("/hf/hub"));
        assert_eq!(cache(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")]), PathBuf::from("/c"));
        assert!(settings(&[]).unwrap_err().to_string().contains("HF_HOME"));
    }

    #[test]
    fn the_endpoint_is_checked_and_the_token_not_shown() {
        let vars = [("HOME", "/h"), ("HF_ENDPOINT", "http://127.0.0.1:8080/"), ("HF_TOKEN", " hf_secret\n")];
        let got = settings(&vars).unwrap();
        assert_eq!(
            (got.endpoint.as_str(), got.token.as_deref()),
            ("http://127.0.0.1:8080", Some("hf_secret"))
        );
        assert!(!format!("{got:?}").contains("secret"));
        assert_eq!(settings(&[("HOME", "/h")]).unwrap().endpoint, DEFAULT_ENDPOINT);
        for wrong in [("HF_ENDPOINT", "ftp://x"), ("HF_TOKEN", "a\nb")] {
            assert!(settings(&[("HOME", "/h"), wrong]).unwrap_err().to_string().contains(wrong.0));
        }
    }

    #[test]
    fn overrides_come_before_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t");
        std::fs::write(&file, "hf_file\n").unwrap();
        let vars = [("HOME", "/h"), ("HF_ENDPOINT", "https://a"), ("HF_TOKEN", "x"), ("HF_HUB_CACHE", "/c")];
        let overrides = Overrides {
            endpoint: Some("http://b/".to_owned()),
            token_file: Some(file.clone()),
            cache: Some("/d".into()),
        };
        let got = settings_with(&vars, &overrides).unwrap();
        assert_eq!((got.endpoint.as_str(), got.token.as_deref()), ("http://b", Some("hf_file")));
        assert_eq!(got.cache, PathBuf::from("/d"));
        std::fs::remove_file(&file).unwrap();
        assert!(settings_with(&vars, &overrides).unwrap_err().to_string().contains("/t: "));
    }

    #[test]
    fn a_token_that_a_log_in_left_is_found() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "hf_kept\n").unwrap();
        let home = folder.path().to_str().unwrap();
        assert_eq!(settings(&[("HF_HOME", home)]).unwrap().token.as_deref(), Some("hf_kept"));
        assert_eq!(settings(&[("HF_HOME", home), ("HF_TOKEN", "x")]).unwrap().token.as_deref(), Some("x"));
    }
}
