//! What Podman says in its own API alone: whose containers it runs, and what its host lets it do.

use std::path::Path;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::UnixStream;

use crate::error::DockerError;
use crate::users::Range;

/// Every Podman from 4.0 on answers to it.
const INFO: &str = "/v4.0.0/libpod/info";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Info {
    pub(crate) host: InfoHost,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct InfoHost {
    pub(crate) id_mappings: Mappings,
    /// `v1` or `v2`.
    pub(crate) cgroup_version: String,
    /// `systemd` or `cgroupfs`.
    pub(crate) cgroup_manager: String,
    /// Those that its user may use; of v2 alone.
    pub(crate) cgroup_controllers: Option<Vec<String>>,
    pub(crate) security: Security,
    pub(crate) slirp4netns: Program,
    pub(crate) pasta: Program,
}

/// None: as root, and nothing is mapped.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Mappings {
    pub(crate) uidmap: Option<Vec<Range>>,
    pub(crate) gidmap: Option<Vec<Range>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Security {
    pub(crate) rootless: bool,
    pub(crate) selinux_enabled: bool,
}

/// Empty where it is not installed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Program {
    pub(crate) executable: String,
}

/// Asks the service at `socket`.
pub(crate) async fn info(socket: &Path) -> Result<InfoHost, DockerError> {
    let away = |why: String| DockerError::Away {
        socket: socket.to_owned(),
        why,
    };
    let stream = UnixStream::connect(socket).await;
    let stream = stream.map_err(|error| away(error.to_string()))?;
    let lost = |error: hyper::Error| DockerError::Lost(error.to_string());
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
    let request = Request::get(INFO)
        .header("Host", "podman")
        .header("Connection", "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| DockerError::Unreadable(error.to_string()))?;
    let asked = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((status, body))
    };
    // Both halves end with the answer, or with whoever asks.
    let (answer, _) = tokio::join!(asked, connection);
    let (status, body) = answer.map_err(lost)?;
    if !status.is_success() {
        return Err(DockerError::Answered {
            status: status.as_u16(),
            message: String::from_utf8_lossy(&body).into_owned(),
        });
    }
    let info: Result<Info, _> = serde_json::from_slice(&body);
    Ok(info
        .map_err(|error| DockerError::Unreadable(error.to_string()))?
        .host)
}
