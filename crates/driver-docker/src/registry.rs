//! Credentials of registries, from the file that `docker login` writes: in it, or with a helper that it
//! names. Read anew at each fetch, so that a login counts at once.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bollard::auth::DockerCredentials;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::error::DockerError;
use crate::reference::HUB;

/// For a helper to answer.
const HELPER_WITHIN: Duration = Duration::from_secs(20);
/// What a helper says, and ends with 1, where it knows nothing of a registry.
const NOT_FOUND: &str = "credentials not found";
/// The name of a user whose secret is an identity token.
const TOKEN: &str = "<token>";
/// With or without padding: both are written.
const AUTH: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What a registry is called with.
pub(crate) struct Login {
    pub(crate) credentials: Option<DockerCredentials>,
    /// Where they are from, or why there are none; for whoever is refused.
    pub(crate) source: String,
}

/// What of the file matters here.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    auths: HashMap<String, Auth>,
    cred_helpers: HashMap<String, String>,
    creds_store: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    /// `user:password`, in base64.
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

/// What a helper answers.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

/// The credentials for a registry: `set` is the file that the configuration names.
///
/// # Errors
/// [`DockerError::Credentials`] where the file or the helper cannot be used: to go on without would be
/// refused for a reason that is not the real one.
pub(crate) async fn login(set: Option<&Path>, registry: &str) -> Result<Login, DockerError> {
    let none = |source| Login {
        credentials: None,
        source,
    };
    let Some(path) = set.map(Path::to_owned).or_else(usual) else {
        return Ok(none("no credentials: no home folder is known".to_owned()));
    };
    let wrong = |why: String| DockerError::Credentials {
        path: path.clone(),
        why,
    };
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound && set.is_none() => {
            return Ok(none(format!("no credentials: no {}", path.display())));
        }
        Err(error) => return Err(wrong(error.to_string())),
    };
    let file: File = serde_json::from_slice(&bytes).map_err(|it| wrong(it.to_string()))?;
    let helper = file.cred_helpers.get(registry).unwrap_or(&file.creds_store);
    let mut found = None;
    if !helper.is_empty() {
        found = ask(helper, registry)
            .await
            .map_err(|why| wrong(format!("docker-credential-{helper}: {why}")))?;
    }
    if found.is_none() {
        found = stored(&file, registry).map_err(|why| wrong(format!("{registry}: {why}")))?;
    }
    Ok(match found {
        Some(credentials) => Login {
            credentials: Some(DockerCredentials {
                serveraddress: Some(registry.to_owned()),
                ..credentials
            }),
            source: format!("with the credentials of {}", path.display()),
        },
        None => none(format!("no credentials for it in {}", path.display())),
    })
}

/// Where Docker's own command keeps them.
fn usual() -> Option<PathBuf> {
    let folder = match env::var_os("DOCKER_CONFIG").filter(|it| !it.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(&env::var_os("HOME").filter(|it| !it.is_empty())?).join(".docker"),
    };
    Some(folder.join("config.json"))
}

/// Those that the file has itself.
fn stored(file: &File, registry: &str) -> Result<Option<DockerCredentials>, CredentialsError> {
    let filed = file.auths.get(registry).or_else(|| {
        // Older files have addresses.
        let same = |key: &&String| host(key) == host(registry);
        file.auths.keys().find(same).map(|key| &file.auths[key])
    });
    let Some(auth) = filed else {
        return Ok(None);
    };
    let (username, password) = if auth.auth.is_empty() {
        (auth.username.clone(), auth.password.clone())
    } else {
        let plain = AUTH.decode(&auth.auth).ok();
        let plain = plain.and_then(|it| String::from_utf8(it).ok());
        let (user, password) = (plain.as_deref())
            .and_then(|it| it.split_once(':'))
            .ok_or(CredentialsError::Auth)?;
        (user.to_owned(), password.trim_end_matches('\0').to_owned())
    };
    if !auth.identitytoken.is_empty() {
        return Ok(Some(of(TOKEN.to_owned(), auth.identitytoken.clone())));
    }
    Ok((!username.is_empty()).then(|| of(username, password)))
}

fn of(username: String, secret: String) -> DockerCredentials {
    if username == TOKEN {
        DockerCredentials {
            identitytoken: Some(secret),
            ..DockerCredentials::default()
        }
    } else {
        DockerCredentials {
            username: Some(username),
            password: Some(secret),
            ..DockerCredentials::default()
        }
    }
}

/// Of an address; the Hub has several.
fn host(key: &str) -> &str {
    let bare = key.strip_prefix("https://");
    let bare = bare.or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    match bare.split('/').next().unwrap_or(bare) {
        "docker.io" | "registry-1.docker.io" => host(HUB),
        host => host,
    }
}

/// Asks a helper. None: it knows nothing of the registry.
async fn ask(helper: &str, registry: &str) -> Result<Option<DockerCredentials>, CredentialsError> {
    if helper.contains('/') {
        return Err(CredentialsError::Name);
    }
    let mut child = Command::new(format!("docker-credential-{helper}"))
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // What it starts ends with it.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let id = child.id();
    let input = child.stdin.take();
    let answer = async {
        if let Some(mut input) = input {
            // One that does not read its question ends with an answer all the same.
            let _ = input.write_all(registry.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let mut answer = pin!(answer);
    // Ended before the first of them is reaped: until then the id is theirs.
    let mut group = Group(id);
    let answered = tokio::time::timeout(HELPER_WITHIN, &mut answer).await;
    let output = answered.map_err(|_| CredentialsError::Late)??;
    group.0 = None;
    if !output.status.success() {
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        return if said.contains(NOT_FOUND) {
            Ok(None)
        } else {
            Err(CredentialsError::Failed(said))
        };
    }
    let answer: Answer =
        serde_json::from_slice(&output.stdout).map_err(|_| CredentialsError::Answer)?;
    Ok(Some(of(answer.username, answer.secret)))
}

/// The processes of a helper, ended where it is not waited for any more. None: it has ended.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        let first = self.0.and_then(|id| i32::try_from(id).ok());
        if let Some(first) = first.and_then(Pid::from_raw) {
            let _ = kill_process_group(first, Signal::KILL);
        }
    }
}

/// Why there are none. Never with what was read: it may be a secret.
#[derive(Debug, thiserror::Error)]
enum CredentialsError {
    #[error("its \"auth\" is not user:password in base64")]
    Auth,
    #[error("not the name of a helper")]
    Name,
    #[error("it did not answer within {HELPER_WITHIN:?}")]
    Late,
    #[error("it failed: {0}")]
    Failed(String),
    #[error("its answer cannot be read")]
    Answer,
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored_in(json: &str, registry: &str) -> Option<DockerCredentials> {
        stored(&serde_json::from_str(json).unwrap(), registry).unwrap()
    }

    #[test]
    fn what_docker_login_writes_is_found_by_host_and_by_address() {
        // "me:se:cret"
        let text = r#"{"auths": {"https://index.docker.io/v1/": {"auth": "bWU6c2U6Y3JldA"},
            "http://localhost:5000/v2/": {"username": "a", "password": "b"},
            "quay.io": {"auth": "bWU6c2U6Y3JldA==", "identitytoken": "it"}, "empty.io": {}}}"#;
        let hub = stored_in(text, HUB).unwrap();
        assert_eq!(hub.username.as_deref(), Some("me"));
        assert_eq!(hub.password.as_deref(), Some("se:cret"));
        let local = stored_in(text, "localhost:5000").unwrap();
        assert_eq!(local.username.as_deref(), Some("a"));
        let token = stored_in(text, "quay.io").unwrap();
        assert_eq!(token.identitytoken.as_deref(), Some("it"));
        assert_eq!(token.password, None);
        assert_eq!(stored_in(text, "empty.io"), None);
        assert_eq!(stored_in(text, "elsewhere.io"), None);
        assert_eq!(stored_in("{}", HUB), None);
    }

    #[test]
    fn what_cannot_be_read_is_an_error_that_does_not_tell_it() {
        let file = serde_json::from_str(r#"{"auths": {"a.io": {"auth": "c2VjcmV0"}}}"#).unwrap();
        let error = stored(&file, "a.io").unwrap_err();
        assert!(matches!(error, CredentialsError::Auth), "{error}");
        let error = error.to_string();
        assert!(
            !error.contains("c2Vj") && !error.contains("secret:"),
            "{error}"
        );
    }
}
