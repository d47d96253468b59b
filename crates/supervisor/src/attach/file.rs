//! The attach file, and which secret goes with which of its tokens.

use std::io;
use std::path::Path;

use serde::Deserialize;

use super::random_secret;

/// The file's name in its folder.
const NAME: &str = "attach";
/// The only version of the file that this supervisor understands.
const VERSION: u32 = 1;

/// What the driver says about the attach to make.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Attach {
    version: u32,
    /// `unix:` and a path inside the sandbox.
    pub(super) endpoint: String,
    pub(super) sandbox_id: String,
    pub(super) incarnation: u64,
    #[serde(default)]
    pub(super) reattach: u64,
    pub(super) token: String,
}

/// Why there is no attach to make.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttachFileError {
    #[error("cannot read the attach file: {0}")]
    Unreadable(#[from] io::Error),
    #[error("the attach file is not understood: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("the attach file has version {0}; this supervisor understands {VERSION}")]
    Version(u32),
    #[error("no randomness for a secret: {0}")]
    NoRandomness(io::Error),
}

impl Attach {
    pub(super) fn read(folder: &Path) -> Result<Self, AttachFileError> {
        let attach: Self = serde_json::from_slice(&std::fs::read(folder.join(NAME))?)?;
        if attach.version == VERSION {
            Ok(attach)
        } else {
            Err(AttachFileError::Version(attach.version))
        }
    }

    /// Whether this asks for a new attach after a detach at `other`.
    pub(super) fn follows(&self, other: &Self) -> bool {
        (self.incarnation, self.reattach) > (other.incarnation, other.reattach)
    }
}

/// What goes beside a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Presented {
    pub(super) secret: String,
    /// Of the attach that was accepted before this token: proof that this is still the process
    /// that the gateway knew. It goes with the token for good: a gateway that dies between taking
    /// an attach and recording it asks for the same proof again.
    pub(super) previous: Option<String>,
}

/// The secrets of this process's life.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    offered: Option<Pair>,
    accepted: Option<Pair>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    token: String,
    presented: Presented,
}

impl Credentials {
    /// The secret for `token`: the same one for the same token, so that a reconnection is the same
    /// attach; a new one for a new token.
    pub(super) fn present(&mut self, token: &str) -> Result<Presented, AttachFileError> {
        if let Some(pair) = &self.offered
            && pair.token == token
        {
            return Ok(pair.presented.clone());
        }
        let presented = Presented {
            secret: random_secret().map_err(AttachFileError::NoRandomness)?,
            previous: self
                .accepted
                .as_ref()
                .map(|accepted| accepted.presented.secret.clone()),
        };
        self.offered = Some(Pair {
            token: token.to_owned(),
            presented: presented.clone(),
        });
        Ok(presented)
    }

    /// The gateway has taken what was presented last.
    pub(super) fn accepted(&mut self) {
        self.accepted.clone_from(&self.offered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_keeps_its_secret_and_a_new_one_proves_the_last_accepted() {
        let mut credentials = Credentials::default();
        let first = credentials.present("one").unwrap();
        assert_eq!(first.previous, None);
        assert_eq!(credentials.present("one").unwrap(), first);
        credentials.accepted();
        assert_eq!(credentials.present("one").unwrap(), first);

        // Refused: the next token still proves the first secret.
        let refused = credentials.present("two").unwrap();
        assert_ne!(refused.secret, first.secret);
        let third = credentials.present("three").unwrap();
        assert_eq!(third.previous, Some(first.secret));
        credentials.accepted();
        // Taken, and perhaps by a gateway that died before it wrote that down.
        assert_eq!(credentials.present("three").unwrap(), third);
        let fourth = credentials.present("four").unwrap();
        assert_eq!(fourth.previous, Some(third.secret));
    }
}
