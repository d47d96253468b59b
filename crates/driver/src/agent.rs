//! What the gateway asks of whoever is inside: the supervisor over its connection, or a backend's own
//! agent. The messages are the supervisor protocol's.
//!
//! An agent is tenant code with authority over its own sandbox only; what it says is a claim.

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use overwinter_api::supervisor as wire;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// The connection ended. What was asked may or may not have happened.
    #[error("the supervisor is gone")]
    Gone,
    /// No answer within the deadline. What was asked may or may not have happened.
    #[error("the supervisor did not answer in time")]
    TimedOut,
    /// It answered with an error.
    #[error("{message}")]
    Refused {
        kind: RefusedKind,
        /// Stable, e.g. `FILE_NOT_FOUND`; empty where the agent gave none.
        reason: String,
        message: String,
    },
}

/// The kinds of refusal that a front door tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedKind {
    InvalidArgument,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    FailedPrecondition,
    ResourceExhausted,
    Unimplemented,
    Internal,
}

pub type AgentResult<T> = Result<T, AgentError>;
/// Messages in either direction, until the call ends.
pub type AgentStream<T> = BoxStream<'static, AgentResult<T>>;

/// The port. Dropping a stream, both halves of it, ends the call and leaves the process running.
#[async_trait]
pub trait Agent: Send + Sync + 'static {
    async fn exec(
        &self,
        input: BoxStream<'static, wire::ExecRequest>,
    ) -> AgentResult<AgentStream<wire::ExecResponse>>;
    async fn start_process(&self, start: wire::ExecStart) -> AgentResult<wire::ProcessInfo>;
    async fn signal_process(&self, process_id: String, signal: i32) -> AgentResult<()>;
    async fn list_processes(&self) -> AgentResult<Vec<wire::ProcessInfo>>;
    async fn get_process(&self, process_id: String) -> AgentResult<wire::ProcessInfo>;
    async fn watch_processes(&self) -> AgentResult<AgentStream<wire::ProcessEvent>>;

    async fn read_file(
        &self,
        request: wire::ReadFileRequest,
    ) -> AgentResult<AgentStream<wire::ReadFileResponse>>;
    async fn write_file(
        &self,
        input: BoxStream<'static, wire::WriteFileRequest>,
    ) -> AgentResult<wire::FileInfo>;
    async fn stat_file(&self, request: wire::StatFileRequest) -> AgentResult<wire::FileInfo>;
    async fn list_directory(
        &self,
        request: wire::ListDirectoryRequest,
    ) -> AgentResult<Vec<wire::FileInfo>>;
    async fn make_directory(&self, request: wire::MakeDirectoryRequest) -> AgentResult<()>;
    async fn rename_file(&self, request: wire::RenameFileRequest) -> AgentResult<()>;
    async fn remove_file(&self, request: wire::RemoveFileRequest) -> AgentResult<()>;

    /// Refuses new work; runs the hook. Idempotent.
    async fn quiesce(
        &self,
        hook: Vec<String>,
        hook_timeout: Duration,
    ) -> AgentResult<wire::QuiesceResponse>;
    /// The inverse. Idempotent.
    async fn unquiesce(&self) -> AgentResult<()>;
    /// Answers with the live processes once the agent has let go: for a supervisor, when end of
    /// file was read.
    async fn detach(&self) -> AgentResult<Vec<String>>;
    /// Ends every process and answers with each kept result.
    async fn terminate(&self, grace: Duration) -> AgentResult<Vec<wire::ExitResult>>;

    /// Resolves when the agent is gone.
    async fn gone(&self);

    /// Ends the connection from this end, whoever still has calls on it: newer credentials have
    /// revoked it, or a newer connection has taken its place. An agent without a connection has nothing to end.
    fn hang_up(&self) {}
}
