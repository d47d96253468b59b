//! When and how a sandbox sleeps.

use std::time::Duration;

use overwinter_api::v1;

use crate::types::{Depth, Sandbox};

/// A sandbox's policy. An update replaces it as a whole: to change one setting, begin with the
/// sandbox's own and name its configuration's version in the update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy(pub(crate) v1::Policy);

impl Policy {
    /// What the gateway uses where nothing is said.
    pub fn new() -> Self {
        Self::default()
    }

    /// The sandbox's own.
    pub fn of(sandbox: &Sandbox) -> Self {
        Self((*sandbox.raw().config.policy).clone())
    }

    /// The depth of a suspend that names none; without it `stop`.
    #[must_use]
    pub fn default_depth(mut self, depth: Depth) -> Self {
        self.0.default_depth = depth.message().into();
        self
    }

    /// How long processes get between SIGTERM and SIGKILL at `stop`, up to an hour; without it 10 s.
    /// A delete does not wait for its end.
    #[must_use]
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.0.stop_grace = buffa_types::google::protobuf::Duration::from(grace).into();
        self
    }

    /// A command run inside before a suspend.
    #[must_use]
    pub fn pre_suspend_hook(
        mut self,
        command: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.0.pre_suspend_hook = command.into_iter().map(Into::into).collect();
        self
    }

    /// A command run inside after a resume.
    #[must_use]
    pub fn post_resume_hook(
        mut self,
        command: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.0.post_resume_hook = command.into_iter().map(Into::into).collect();
        self
    }

    /// A hook's deadline, from a millisecond to an hour; without it 10 s.
    #[must_use]
    pub fn hook_timeout(mut self, timeout: Duration) -> Self {
        self.0.hook_timeout = buffa_types::google::protobuf::Duration::from(timeout).into();
        self
    }
}
