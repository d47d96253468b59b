//! Sessions with whoever is inside the sandboxes.
//!
//! | module | its one idea |
//! |---|---|
//! | [`credentials`] | tokens, derived; secrets, compared by hash |
//! | `connections` | how many one sandbox may have |
//! | [`slot`] | one awake sandbox: its session, its gate, its use |
//! | [`hub`] | all of them, and the door that supervisors knock on |

mod connections;
pub mod credentials;
pub mod hub;
pub mod slot;

pub use credentials::{CredentialKey, Expected, Proof};
pub use hub::Hub;
pub use slot::{Admission, Session, Slot};
