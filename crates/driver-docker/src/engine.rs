//! The daemon's API: a client that is made when it is needed, for the one daemon that has this gateway's
//! containers, and calls whose failure says what became of the request.
//!
//! Each request has a connection of its own, so none is ever sent twice.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bollard::auth::DockerCredentials;
use bollard::errors::Error as Bollard;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerSummary, CreateImageInfo, EventMessage,
    ImageInspect, SystemInfo,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, EventsOptionsBuilder,
    InspectContainerOptions, KillContainerOptionsBuilder, ListContainersOptionsBuilder,
    RemoveContainerOptionsBuilder, StartContainerOptions, StopContainerOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use crate::error::{At, DockerError};
use crate::flavor::Flavor;
use crate::home::write_aside;
use crate::host::Host;
use crate::users::Users;

/// Seconds for the head of an answer; effects have deadlines of their own, far below.
const CLIENT_TIMEOUT: u64 = 3_600;
/// For the answer to a question. A daemon that was stopped takes the connection and says nothing.
const READ_WITHIN: Duration = Duration::from_secs(20);
/// For saying who it is, which takes a daemon some programs to run where it has none yet.
const HELLO_WITHIN: Duration = Duration::from_secs(20);

pub(crate) struct Engine {
    flavor: Flavor,
    socket: PathBuf,
    /// Where it is written down which daemon this is.
    known: PathBuf,
    /// None: not connected, or the daemon's events have ended since.
    client: Mutex<Option<Docker>>,
    /// As it was found last; None: not by this process.
    host: Mutex<Option<Host>>,
    /// One asks who it is, and those who come meanwhile have the answer.
    hello: tokio::sync::Mutex<()>,
}

/// A daemon, by what does not change while it has its containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) id: String,
    /// Two daemons of one host may have one id.
    pub(crate) root: PathBuf,
    #[serde(default)]
    pub(crate) host: Host,
    /// As found last; for a description while it is away.
    pub(crate) version: String,
}

impl Identity {
    fn of(flavor: Flavor, info: &SystemInfo, host: Host) -> Self {
        Self {
            id: flavor.id(info),
            root: PathBuf::from(info.docker_root_dir.clone().unwrap_or_default()),
            host,
            version: info.server_version.clone().unwrap_or_default(),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.id == other.id && self.root == other.root
    }
}

impl Engine {
    pub(crate) const fn new(flavor: Flavor, socket: PathBuf, known: PathBuf) -> Self {
        Self {
            flavor,
            socket,
            known,
            client: Mutex::new(None),
            host: Mutex::new(None),
            hello: tokio::sync::Mutex::const_new(()),
        }
    }

    fn error(&self, error: Bollard) -> DockerError {
        DockerError::of(error, &self.socket)
    }

    /// The client, once it is sure that the daemon is the one that was there before.
    async fn client(&self) -> Result<Docker, DockerError> {
        let cached = || self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*cached() {
            return Ok(client.clone());
        }
        let _one = self.hello.lock().await;
        if let Some(client) = &*cached() {
            return Ok(client.clone());
        }
        let hello = tokio::time::timeout(HELLO_WITHIN, self.unchecked()).await;
        let (unchecked, info, host) =
            hello.unwrap_or_else(|_| Err(self.nothing_sent(Bollard::RequestTimeoutError)))?;
        self.check(&info, host)?;
        *cached() = Some(unchecked.clone());
        Ok(unchecked)
    }

    /// For asking who it is.
    async fn unchecked(&self) -> Result<(Docker, SystemInfo, Host), DockerError> {
        let path = self.socket.to_string_lossy();
        let client = Docker::connect_with_unix(&path, CLIENT_TIMEOUT, API_DEFAULT_VERSION)
            .map_err(|error| self.nothing_sent(error))?;
        let client = client.negotiate_version().await;
        let client = client.map_err(|error| self.nothing_sent(error))?;
        let info = client.info().await.map_err(|it| self.nothing_sent(it))?;
        let host = Host::meet(self.flavor, &self.socket, &info).await;
        Ok((client, info, host.map_err(|error| self.unsent(error))?))
    }

    /// A question, which changes nothing.
    async fn read<T>(
        &self,
        asked: impl Future<Output = Result<T, Bollard>>,
    ) -> Result<T, DockerError> {
        match tokio::time::timeout(READ_WITHIN, asked).await {
            Ok(answer) => answer.map_err(|error| self.error(error)),
            Err(_) => Err(self.error(Bollard::RequestTimeoutError)),
        }
    }

    /// A failure to ask who it is: what the caller wanted was not sent.
    fn nothing_sent(&self, error: Bollard) -> DockerError {
        self.unsent(self.error(error))
    }

    fn unsent(&self, error: DockerError) -> DockerError {
        match error {
            DockerError::Lost(why) | DockerError::Unreadable(why) => DockerError::Away {
                socket: self.socket.clone(),
                why,
            },
            other => other,
        }
    }

    /// The daemon may be another when it answers again.
    pub(crate) fn disconnect(&self) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn check(&self, info: &SystemInfo, host: Host) -> Result<(), DockerError> {
        let found = Identity::of(self.flavor, info, host);
        let known = self.identity()?;
        let met = found.host.clone();
        match &known {
            Some(known) if !known.is_same(&found) => {
                let text = |it: &Identity| {
                    format!("{} in {}", it.id, it.root.display())
                        .trim()
                        .to_owned()
                };
                return Err(DockerError::AnotherDaemon {
                    socket: self.socket.clone(),
                    file: self.known.clone(),
                    known: text(known),
                    found: text(&found),
                });
            }
            Some(known) if *known == found => {}
            Some(_) | None => {
                let bytes = serde_json::to_vec(&found).at("writing", &self.known)?;
                write_aside(&self.known, &bytes)?;
            }
        }
        *self.host.lock().unwrap_or_else(PoisonError::into_inner) = Some(met);
        Ok(())
    }

    /// The daemon that was there last.
    pub(crate) fn identity(&self) -> Result<Option<Identity>, DockerError> {
        match fs::read(&self.known) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).at("reading", &self.known),
        }
    }

    /// Whom a container's users are on the host.
    pub(crate) async fn users(&self) -> Result<Users, DockerError> {
        self.client().await?;
        Ok(self.met()?.users)
    }

    /// What the daemon may do on its host, as it was when it was met last.
    pub(crate) fn met(&self) -> Result<Host, DockerError> {
        if let Some(host) = &*self.host.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(host.clone());
        }
        Ok(self.identity()?.map(|it| it.host).unwrap_or_default())
    }

    pub(crate) async fn info(&self) -> Result<SystemInfo, DockerError> {
        let client = self.client().await?;
        self.read(client.info()).await
    }

    /// Whether the daemon has a network of this name.
    pub(crate) async fn has_network(&self, name: &str) -> Result<bool, DockerError> {
        let client = self.client().await?;
        let answer = self.read(client.inspect_network(name, None)).await;
        Ok(absent_is_none(answer)?.is_some())
    }

    pub(crate) async fn inspect(
        &self,
        name: &str,
    ) -> Result<Option<ContainerInspectResponse>, DockerError> {
        let client = self.client().await?;
        let asked = client.inspect_container(name, None::<InspectContainerOptions>);
        absent_is_none(self.read(asked).await)
    }

    /// Every container that carries the label, whatever its value.
    pub(crate) async fn labelled(&self, label: &str) -> Result<Vec<ContainerSummary>, DockerError> {
        let client = self.client().await?;
        let filters = HashMap::from([("label", vec![label])]);
        let options = ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&filters)
            .build();
        self.read(client.list_containers(Some(options))).await
    }

    /// Makes a container. Answers with its id.
    pub(crate) async fn create(
        &self,
        name: &str,
        body: ContainerCreateBody,
    ) -> Result<String, DockerError> {
        let client = self.client().await?;
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let answer = client.create_container(Some(options), body).await;
        Ok(answer.map_err(|it| self.error(it))?.id)
    }

    pub(crate) async fn start(&self, container: &str) -> Result<(), DockerError> {
        let client = self.client().await?;
        let answer = client
            .start_container(container, None::<StartContainerOptions>)
            .await;
        answer.map_err(|it| self.error(it))
    }

    pub(crate) async fn pause(&self, container: &str) -> Result<(), DockerError> {
        let client = self.client().await?;
        let answer = client.pause_container(container).await;
        answer.map_err(|it| self.error(it))
    }

    pub(crate) async fn unpause(&self, container: &str) -> Result<(), DockerError> {
        let client = self.client().await?;
        let answer = client.unpause_container(container).await;
        answer.map_err(|it| self.error(it))
    }

    /// Its stop signal, which is SIGKILL for ours, without grace; the daemon answers once it has ended.
    /// For what runs; Docker is some milliseconds quicker at it than at a kill.
    pub(crate) async fn stop(&self, container: &str) -> Result<(), DockerError> {
        let client = self.client().await?;
        let options = StopContainerOptionsBuilder::default().t(0).build();
        let answer = client.stop_container(container, Some(options)).await;
        answer.map_err(|it| self.error(it))
    }

    /// SIGKILL; the daemon answers once it has ended.
    pub(crate) async fn kill(&self, container: &str) -> Result<(), DockerError> {
        let client = self.client().await?;
        let options = KillContainerOptionsBuilder::default()
            .signal("SIGKILL")
            .build();
        let answer = client.kill_container(container, Some(options)).await;
        answer.map_err(|it| self.error(it))
    }

    /// Ends and removes it, with the volumes that have no name.
    pub(crate) async fn remove(&self, container: &str) -> Result<(), DockerError> {
        let client = self.client().await?;
        let options = RemoveContainerOptionsBuilder::default()
            .force(true)
            .v(true)
            .build();
        let answer = client.remove_container(container, Some(options)).await;
        answer.map_err(|it| self.error(it))
    }

    pub(crate) async fn image(&self, name: &str) -> Result<Option<ImageInspect>, DockerError> {
        let client = self.client().await?;
        absent_is_none(self.read(client.inspect_image(name)).await)
    }

    /// Fetches an image, whose name must have a tag or a digest, and tells of each step.
    pub(crate) async fn pull(
        &self,
        image: &str,
        credentials: Option<DockerCredentials>,
        mut tell: impl FnMut(CreateImageInfo) + Send,
    ) -> Result<(), DockerError> {
        let client = self.client().await?.with_request_modifier(url_safe);
        let options = CreateImageOptionsBuilder::default()
            .from_image(image)
            .build();
        let mut steps = client.create_image(Some(options), None, credentials);
        while let Some(step) = steps.next().await {
            tell(step.map_err(|it| self.error(it))?);
        }
        Ok(())
    }

    pub(crate) const fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// What happens to containers that carry the label, from `since` (Unix seconds) on. The stream is
    /// asked for when it is first polled.
    pub(crate) async fn events(
        &self,
        label: &str,
        since: u64,
    ) -> Result<BoxStream<'static, Result<EventMessage, DockerError>>, DockerError> {
        let client = self.client().await?;
        let filters = HashMap::from([("type", vec!["container"]), ("label", vec![label])]);
        let options = EventsOptionsBuilder::default()
            .filters(&filters)
            .since(&since.to_string())
            .build();
        let socket = self.socket.clone();
        let events = client.events(Some(options));
        Ok(events
            .map_err(move |error| DockerError::of(error, &socket))
            .boxed())
    }
}

const NOT_FOUND: u16 = 404;

/// The daemons read the header of credentials in base64's alphabet for URLs, and take what they cannot
/// read for no credentials at all; the client writes it in the usual one.
pub(crate) fn url_safe(mut request: BollardRequest) -> BollardRequest {
    if let Some(auth) = request.headers_mut().get_mut("X-Registry-Auth")
        && let Ok(text) = auth.to_str()
        && let Ok(safe) = text.replace('+', "-").replace('/', "_").try_into()
    {
        *auth = safe;
        auth.set_sensitive(true);
    }
    request
}

fn absent_is_none<T>(answer: Result<T, DockerError>) -> Result<Option<T>, DockerError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.status() == Some(NOT_FOUND) => Ok(None),
        Err(error) => Err(error),
    }
}
