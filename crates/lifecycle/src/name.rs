//! Names of sandboxes.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A DNS label (RFC 1123: 1 to 63 of a-z, 0-9 and `-`, not at either end) that is no UUID, so that
/// a name and an id can never be taken for one another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error("a name has 1 to 63 characters, this one has {0}")]
    Length(usize),
    #[error("a name has only a-z, 0-9 and '-', not {0:?}")]
    Character(char),
    #[error("a name neither begins nor ends with '-'")]
    Hyphen,
    #[error("a UUID is an id and cannot be a name")]
    Uuid,
}

impl Name {
    /// # Errors
    /// [`BadName`] says which rule is broken.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        if text.is_empty() || text.len() > 63 {
            return Err(BadName::Length(text.chars().count()));
        }
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if let Some(bad) = text.chars().find(|c| !allowed(*c)) {
            return Err(BadName::Character(bad));
        }
        if text.starts_with('-') || text.ends_with('-') {
            return Err(BadName::Hyphen);
        }
        if Uuid::try_parse(text).is_ok() {
            return Err(BadName::Uuid);
        }
        Ok(Self(text.to_owned()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        Self::parse(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_dns_label_and_no_uuid() {
        assert!(Name::parse("web-1").is_ok());
        assert_eq!(Name::parse(""), Err(BadName::Length(0)));
        assert_eq!(Name::parse(&"a".repeat(64)), Err(BadName::Length(64)));
        assert_eq!(Name::parse("Web"), Err(BadName::Character('W')));
        assert_eq!(
            Name::parse("a\u{1b}[31m"),
            Err(BadName::Character('\u{1b}'))
        );
        assert_eq!(Name::parse("-a"), Err(BadName::Hyphen));
        let id = "0192f0c1-2345-7abc-8def-0123456789ab";
        assert_eq!(Name::parse(id), Err(BadName::Uuid));
        assert_eq!(Name::parse(&id.replace('-', "")), Err(BadName::Uuid));
    }
}
