//! Whom the users of a container are on this host. Pure.

use overwinter_driver::door::SUPERVISOR_ID;
use serde::{Deserialize, Serialize};

/// A stretch of numbers that are others outside, as `/proc/<pid>/uid_map` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Range {
    #[serde(rename = "container_id")]
    pub(crate) inside: u32,
    #[serde(rename = "host_id")]
    pub(crate) outside: u32,
    pub(crate) size: u32,
}

/// Every number is itself.
pub(crate) const UNMAPPED: Range = Range {
    inside: 0,
    outside: 0,
    size: u32::MAX,
};

/// As this process sees them: for files that it gives away, and for who connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Users {
    /// Beside [`SUPERVISOR_ID`] the number of PID 1's user.
    pub(crate) base: u32,
    /// User and group of the container's user 0. Of a rootless daemon: those of its own user, which are no
    /// neighbours of the others.
    pub(crate) root: (u32, u32),
}

/// Why a container's users are nobody here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Nobody {
    #[error(
        "its user has no number for the user {0} of a container: it needs {size} subordinate ids (usermod --add-subuids and --add-subgids, then podman system migrate)",
        size = SUPERVISOR_ID + 1
    )]
    Inside(u32),
    #[error(
        "its user {0} is nobody to this gateway, which runs in another user namespace: run it as root of this host, or in the daemon's own (podman unshare)"
    )]
    Outside(u32),
    #[error("its user maps the supervisor to {0}, which is too low a number")]
    Low(u32),
}

impl Users {
    /// All are moved by one number.
    pub(crate) const fn moved(base: u32) -> Self {
        Self {
            base,
            root: (base, base),
        }
    }

    /// `uids`, `gids`: of the container. `own`: of this process, users and groups.
    pub(crate) fn of(
        uids: &[Range],
        gids: &[Range],
        own: (&[Range], &[Range]),
    ) -> Result<Self, Nobody> {
        let number = |ranges: &[Range], own: &[Range], id| {
            let outside = outside(ranges, id).ok_or(Nobody::Inside(id))?;
            inside(own, outside).ok_or(Nobody::Outside(outside))
        };
        let supervisor = number(uids, own.0, SUPERVISOR_ID)?;
        Ok(Self {
            base: supervisor
                .checked_sub(SUPERVISOR_ID)
                .ok_or(Nobody::Low(supervisor))?,
            root: (number(uids, own.0, 0)?, number(gids, own.1, 0)?),
        })
    }
}

fn outside(ranges: &[Range], id: u32) -> Option<u32> {
    let mut found = ranges.iter().filter_map(|range| {
        let within = id.checked_sub(range.inside)?;
        (within < range.size).then(|| range.outside.checked_add(within))?
    });
    found.next()
}

fn inside(ranges: &[Range], id: u32) -> Option<u32> {
    let turned: Vec<_> = ranges
        .iter()
        .map(|range| Range {
            inside: range.outside,
            outside: range.inside,
            size: range.size,
        })
        .collect();
    outside(&turned, id)
}

/// From the text of a `uid_map`; what is no range is left out.
pub(crate) fn read(text: &str) -> Vec<Range> {
    let line = |line: &str| {
        let mut words = line.split_whitespace().map(str::parse);
        Some(Range {
            inside: words.next()?.ok()?,
            outside: words.next()?.ok()?,
            size: words.next()?.ok()?,
        })
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: (&[Range], &[Range]) = (&[UNMAPPED], &[UNMAPPED]);

    /// As of a user 1000, group 100, with the usual range.
    fn of_a_user(size: u32) -> [Vec<Range>; 2] {
        [1000, 100].map(|own| read(&format!("0 {own} 1\n1 100000 {size}\n")))
    }

    #[test]
    fn a_user_is_root_inside_and_the_others_are_subordinate() {
        let [uids, gids] = of_a_user(65_536);
        let users = Users::of(&uids, &gids, ALL);
        let base = 100_000 + SUPERVISOR_ID - 1 - SUPERVISOR_ID;
        let root = (1000, 100);
        assert_eq!(users, Ok(Users { base, root }));
    }

    #[test]
    fn in_the_namespace_of_the_daemon_all_are_themselves() {
        let [uids, gids] = of_a_user(65_536);
        let users = Users::of(&uids, &gids, (&uids, &gids));
        assert_eq!(users, Ok(Users::default()));
        assert_eq!(
            Users::of(&[UNMAPPED], &[UNMAPPED], ALL),
            Ok(Users::moved(0))
        );
    }

    #[test]
    fn too_few_numbers_and_another_namespace_are_said() {
        let [uids, gids] = of_a_user(65_534);
        let users = Users::of(&uids, &gids, ALL);
        assert_eq!(users, Err(Nobody::Inside(SUPERVISOR_ID)));
        let [uids, gids] = of_a_user(65_535);
        assert!(Users::of(&uids, &gids, ALL).is_ok());
        let elsewhere = read("0 2000 1\n1 300000 65536\n");
        let users = Users::of(&uids, &gids, (&elsewhere, &elsewhere));
        assert_eq!(users, Err(Nobody::Outside(165_534)));
        let low = read("0 5 65536\n");
        assert!(Users::of(&low, &low, ALL).is_ok());
        let low = read("0 70000 65535\n65535 9 1\n");
        assert_eq!(Users::of(&low, &low, ALL), Err(Nobody::Low(9)));
    }
}
