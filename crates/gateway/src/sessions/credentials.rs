//! What an attach must prove.
//!
//! A token is derived from the gateway's key, the sandbox and the incarnation, so it needs no row and
//! no commit, and only the newest `issued` counts: raising that revokes all older ones. The secret is
//! of the supervisor's own making; the gateway keeps its hash.

use hmac::{Hmac, KeyInit, Mac};
use overwinter_driver::attach::{AttachProof, AttachRefused};
use overwinter_driver::{Credentials, Token};
use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use overwinter_lifecycle::recording::SecretHash;
use sha2::{Digest, Sha256};

/// The gateway's own key; minted with the store.
#[derive(Clone)]
pub struct CredentialKey([u8; 32]);

impl CredentialKey {
    #[must_use]
    pub const fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    fn mac(&self, sandbox: SandboxId, incarnation: Incarnation) -> Hmac<Sha256> {
        let mut mac = match Hmac::<Sha256>::new_from_slice(&self.0) {
            Ok(mac) => mac,
            // HMAC takes keys of every length (RFC 2104, section 3).
            Err(_) => unreachable!("HMAC takes a key of any length"),
        };
        mac.update(b"overwinter attach v1");
        mac.update(sandbox.0.as_bytes());
        mac.update(&incarnation.0.to_be_bytes());
        mac
    }

    /// What the driver puts into the attach file.
    #[must_use]
    pub fn issue(&self, sandbox: SandboxId, incarnation: Incarnation) -> Credentials {
        let mac = self.mac(sandbox, incarnation).finalize().into_bytes();
        let token = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        Credentials {
            sandbox,
            incarnation,
            token: Token(token),
        }
    }

    /// In constant time.
    fn is_token(&self, sandbox: SandboxId, incarnation: Incarnation, token: &Token) -> bool {
        let mut bytes = [0; 32];
        let text = token.0.as_bytes();
        if text.len() != 64 {
            return false;
        }
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16);
            match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => *byte = (high * 16 + low) as u8,
                _ => return false,
            }
        }
        self.mac(sandbox, incarnation).verify_slice(&bytes).is_ok()
    }
}

#[must_use]
pub fn hash(secret: &[u8; 32]) -> SecretHash {
    SecretHash(Sha256::digest(secret).into())
}

/// Under which incarnation an attach is awaited, and what it must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub incarnation: Incarnation,
    pub proof: Proof,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// New compute: any secret, once.
    Fresh,
    /// Compute that kept its memory: the secret that it had, beside a new one.
    Kept(SecretHash),
    /// The same attach again.
    Same(SecretHash),
}

impl Expected {
    /// Decides, and says what to expect from then on.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn verify(
        self,
        key: &CredentialKey,
        sandbox: SandboxId,
        proof: &AttachProof,
    ) -> Result<Self, AttachRefused> {
        if overwinter_lifecycle::mutant!(AnyCredentials) {
            let proof = Proof::Same(hash(&proof.secret));
            return Ok(Self { proof, ..self });
        }
        if proof.incarnation != self.incarnation {
            return Err(AttachRefused::Revoked);
        }
        if !key.is_token(sandbox, self.incarnation, &proof.token) {
            return Err(AttachRefused::WrongToken);
        }
        let secret = hash(&proof.secret);
        match self.proof {
            Proof::Fresh => {}
            Proof::Kept(earlier) => {
                if proof.previous_secret.as_ref().map(hash) != Some(earlier) {
                    return Err(AttachRefused::WrongPreviousSecret);
                }
            }
            Proof::Same(known) => {
                if secret != known {
                    return Err(AttachRefused::TokenUsed);
                }
            }
        }
        Ok(Self {
            incarnation: self.incarnation,
            proof: Proof::Same(secret),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SANDBOX: SandboxId = SandboxId(uuid::Uuid::from_u128(7));

    fn key() -> CredentialKey {
        CredentialKey::new([3; 32])
    }

    fn proof(incarnation: u64, secret: u8, previous: Option<u8>) -> AttachProof {
        AttachProof {
            incarnation: Incarnation(incarnation),
            token: key().issue(SANDBOX, Incarnation(incarnation)).token,
            secret: [secret; 32],
            previous_secret: previous.map(|byte| [byte; 32]),
        }
    }

    fn expect(incarnation: u64, proof: Proof) -> Expected {
        Expected {
            incarnation: Incarnation(incarnation),
            proof,
        }
    }

    #[test]
    fn a_token_is_good_for_one_secret_and_the_newest_incarnation_alone() {
        let first = expect(2, Proof::Fresh);
        let used = first.verify(&key(), SANDBOX, &proof(2, 1, None)).unwrap();
        assert_eq!(used.verify(&key(), SANDBOX, &proof(2, 1, None)), Ok(used));
        assert_eq!(
            used.verify(&key(), SANDBOX, &proof(2, 9, None)),
            Err(AttachRefused::TokenUsed)
        );
        assert_eq!(
            first.verify(&key(), SANDBOX, &proof(1, 1, None)),
            Err(AttachRefused::Revoked)
        );
        let forged = AttachProof {
            token: Token("00".repeat(32)),
            ..proof(2, 1, None)
        };
        assert_eq!(
            first.verify(&key(), SANDBOX, &forged),
            Err(AttachRefused::WrongToken)
        );
        let other = SandboxId(uuid::Uuid::from_u128(8));
        assert_eq!(
            first.verify(&key(), other, &proof(2, 1, None)),
            Err(AttachRefused::WrongToken)
        );
    }

    #[test]
    fn compute_that_kept_its_memory_must_know_its_earlier_secret() {
        let kept = expect(3, Proof::Kept(hash(&[1; 32])));
        let refused = Err(AttachRefused::WrongPreviousSecret);
        assert_eq!(kept.verify(&key(), SANDBOX, &proof(3, 2, None)), refused);
        assert_eq!(kept.verify(&key(), SANDBOX, &proof(3, 2, Some(5))), refused);
        assert!(kept.verify(&key(), SANDBOX, &proof(3, 2, Some(1))).is_ok());
    }
}
