//! Why something was refused or failed. The code is stable across releases and what a program
//! matches; the text is what a user reads, with what to do next.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $next:literal;)*) => {
        /// Stable reason codes of the lifecycle.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Reason {
            $($(#[$doc])* #[serde(rename = $code)] $name,)*
        }

        impl Reason {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Stable; documented in the API reference.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            /// What the user can do about it.
            #[must_use]
            pub const fn next(self) -> &'static str {
                match self { $(Self::$name => $next,)* }
            }
        }
    };
}

reasons! {
    /// It sleeps deeper than asked.
    AlreadyDeeper = "ALREADY_DEEPER", "resume it first, then suspend it at the depth you want";
    /// A delete was accepted.
    Deleting = "SANDBOX_DELETING", "wait for the delete to end; then the name is free";
    /// A plain delete waits in line, and nothing replaces it.
    DeleteInLine = "DELETE_IN_LINE", "wait until the delete has begun, then abandon it";
    /// An idle suspend found it busy.
    NotIdle = "NOT_IDLE", "nothing to do: it is in use";
    /// The gateway's limits leave no room.
    CapacityExceeded = "CAPACITY_EXCEEDED", "suspend or delete another sandbox, or raise the gateway's limits";
    /// The driver cannot do this.
    Unsupported = "UNSUPPORTED", "see `overwinter driver list` for what the driver can do";
    /// The driver refused, surely without an effect.
    DriverRejected = "DRIVER_REJECTED", "mend what the message names, then try again";
    /// The disk that the driver keeps storage on is full; nothing was changed.
    DiskFull = "DISK_FULL", "make room on the disk of the data folder; deletes are still carried out";
    /// The driver's lock or backend did not answer in time.
    DriverTimeout = "DRIVER_TIMEOUT", "see the gateway's log, then try again, or delete the sandbox";
    /// The image is not there or cannot be used.
    ImageUnusable = "IMAGE_UNUSABLE", "check the path of the image and what it holds";
    /// No session with the supervisor.
    SupervisorUnreachable = "SUPERVISOR_UNREACHABLE", "suspend it at depth stop, or look at its log";
    /// The pre-suspend hook failed or ran out of time.
    HookFailed = "HOOK_FAILED", "mend the hook, or replace the sandbox's policy without it";
    /// A memory depth failed and the compute is intact.
    SuspendAborted = "SUSPEND_ABORTED", "it is running on; try again, or suspend it at depth stop";
    /// The retained memory is gone.
    RetainedLost = "RETAINED_LOST", "use `start`, or resume with --restart-if-restore-fails: the storage is intact";
    /// The retained memory belongs to another state of the disk.
    RetainedStale = "RETAINED_STALE", "use `start`, or resume with --restart-if-restore-fails: the storage is intact";
    /// The artifact of a checkpoint does not hold what was written.
    ArtifactDamaged = "ARTIFACT_DAMAGED", "use `start`, or resume with --restart-if-restore-fails: the storage is intact";
    /// The artifact was written by another sandbox, gateway or driver.
    ArtifactForeign = "ARTIFACT_FOREIGN", "use `start`, or resume with --restart-if-restore-fails: the storage is intact";
    /// The artifact can be restored by another build alone. It is kept.
    RuntimeChanged = "RUNTIME_CHANGED", "install the build that the message names and resume again, or use `start`: the storage is intact";
    /// The artifact was taken over an image that is not as it was. It is kept.
    ImageChanged = "IMAGE_CHANGED", "put the image back as it was and resume again, or use `start`: the storage is intact";
    /// The root layer is gone, the workspace is there.
    RootLost = "ROOT_LOST", "use `start`, or resume with --restart-if-restore-fails: it goes on with a new root layer, and its workspace as it was";
    /// The backend could not bring it back; nothing ran.
    RestoreFailed = "RESTORE_FAILED", "try again, or use `start`: the storage is intact";
    /// Compute could not be started; surely none is there.
    StartFailed = "START_FAILED", "mend what the message names, then resume or start it";
    /// The compute is there but its supervisor never attached.
    AttachTimeout = "ATTACH_TIMEOUT", "resume it to give it new credentials, or suspend it at depth stop";
    /// Running compute was found gone.
    ComputeLost = "COMPUTE_LOST", "resume it: its storage is intact";
    /// A stop did not end the compute.
    StopFailed = "STOP_FAILED", "suspend it at depth stop again, or resume it: it is started anew on its storage";
    /// Removing it did not succeed yet.
    DeleteFailed = "DELETE_FAILED", "delete it again, or with --abandon if the backend is gone for good";
    /// Another operation ended this one.
    Interrupted = "INTERRUPTED", "see the operation that took over";
}

impl Reason {
    /// Whether memory that a restore was refused for, with this, can never be restored. Any other
    /// refusal may pass: what was retained stays available.
    #[must_use]
    pub const fn condemns_memory(self) -> bool {
        matches!(
            self,
            Self::ArtifactDamaged
                | Self::ArtifactForeign
                | Self::RetainedStale
                | Self::RetainedLost
        )
    }

    /// Whether it speaks of what is retained, which its driver has looked at: what it says of that is so.
    #[must_use]
    pub const fn is_of_memory(self) -> bool {
        self.condemns_memory() || matches!(self, Self::RuntimeChanged | Self::ImageChanged)
    }
}

/// A reason with the words of the occasion.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    pub reason: Reason,
    pub message: String,
}

impl Fault {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}
