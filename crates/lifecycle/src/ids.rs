//! The numbers that order things. Each is its own type: an epoch, a fence, a serial and an
//! incarnation are never compared with one another and never packed together.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The one after this.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

uuid_id! {
    /// A sandbox, for ever: UUIDv7, never reused.
    SandboxId
}
uuid_id! {
    /// One operation on one sandbox: UUIDv7.
    OperationId
}
counter! {
    /// Given to an operation when it begins; per sandbox, from 1.
    Fence
}
counter! {
    /// Given to each effect of an operation; per operation, from 1.
    Serial
}
counter! {
    /// Rises when a create, start or resume begins and when a fallback begins; from 1, never reused.
    Incarnation
}
counter! {
    /// Of the storage: rises before any compute may write.
    DiskGeneration
}

/// Names one effect for ever: a driver carries out one key at most once, and refuses smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EffectKey {
    pub sandbox: SandboxId,
    pub fence: Fence,
    pub serial: Serial,
}

impl EffectKey {
    /// The name of what this effect makes (a container id, an artifact's folder), known before the
    /// call so that it can be found again whatever became of the call.
    #[must_use]
    pub fn native_name(&self) -> String {
        format!("{}-{}-{}", self.sandbox.0.simple(), self.fence, self.serial)
    }
}

/// Unix milliseconds, by the clock that the gateway was given.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Millis(pub i64);
