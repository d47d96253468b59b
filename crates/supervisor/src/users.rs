//! Who a process or a file operation acts as: looked up in the sandbox's own `/etc/passwd` and
//! `/etc/group`, read as plain files because there is no libc of the image to ask.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The supervisor's own user inside a sandbox. No workload may be it: a process under the same id
/// could limit or mislead the supervisor.
pub(crate) const RESERVED_UID: u32 = 65535;

/// More than any sane user database; a larger file is read up to here.
const MAX_DATABASE_BYTES: u64 = 1 << 20;

/// The kernel's bound on supplementary groups is 65,536; no image comes near this one.
const MAX_GROUPS: usize = 1024;

/// A resolved user, ready for system calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, the primary one among them.
    pub groups: Vec<u32>,
    /// From the database, where it has an entry.
    pub name: Option<String>,
    /// From the database, else `/`.
    pub home: String,
}

/// Why a user cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    #[error("user {user}: not in the sandbox's /etc/passwd")]
    NotFound { user: String },
    #[error("group {group}: not in the sandbox's /etc/group")]
    GroupNotFound { group: String },
    #[error("uid {RESERVED_UID} is the supervisor's own")]
    Reserved,
    #[error("{what} {id}: this sandbox has no such id, {}", range(*.last))]
    OutOfRange {
        what: &'static str,
        id: String,
        /// The largest that it has.
        last: u32,
    },
    #[error("user {user:?}: expected a name, a uid, or user:group")]
    Malformed { user: String },
}

fn range(last: u32) -> String {
    format!("only 0 to {last}")
}

/// The ids that the sandbox's user namespace has, as the kernel says it: all below one bound, as
/// every driver makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Last {
    pub uid: u32,
    pub gid: u32,
}

impl Last {
    /// What no id map forbids. `u32::MAX` means "leave as it is" to setresuid, which would keep the
    /// supervisor's own.
    const ANY: u32 = u32::MAX - 1;

    fn read() -> Self {
        let last = |path| {
            let map = read_database(Path::new(path));
            last_of_map(&map).unwrap_or(Self::ANY)
        };
        Self {
            uid: last("/proc/self/uid_map"),
            gid: last("/proc/self/gid_map"),
        }
    }
}

/// The largest id of a map: lines of an id inside, one outside, and how many.
fn last_of_map(map: &str) -> Option<u32> {
    let ends = map.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let first: u32 = fields.next()?.parse().ok()?;
        let count: u32 = fields.nth(1)?.parse().ok()?;
        first.checked_add(count)?.checked_sub(1)
    });
    ends.max().map(|last| last.min(Last::ANY))
}

struct Entry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

/// Resolves `spec` (`name`, `uid`, `user:group`; empty: `default`) against `/etc`.
pub(crate) fn resolve(spec: &str, default: (u32, u32)) -> Result<User, UserError> {
    let passwd = read_database(Path::new("/etc/passwd"));
    let group = read_database(Path::new("/etc/group"));
    resolve_in(spec, default, &passwd, &group, Last::read())
}

/// As [`resolve`], with the text of the two files.
pub(crate) fn resolve_in(
    spec: &str,
    default: (u32, u32),
    passwd: &str,
    group: &str,
    last: Last,
) -> Result<User, UserError> {
    let (user, wanted_group) = match spec.split_once(':') {
        _ if spec.is_empty() => (default.0.to_string(), None),
        Some((user, group)) if !user.is_empty() && !group.is_empty() => {
            (user.to_owned(), Some(group))
        }
        Some(_) => return Err(UserError::Malformed { user: spec.into() }),
        None => (spec.to_owned(), None),
    };
    let numeric = user.parse::<u32>().ok();
    let entry = passwd
        .lines()
        .filter_map(parse_entry)
        .find(|entry| match numeric {
            Some(uid) => entry.uid == uid,
            None => entry.name == user,
        });
    let (uid, entry_gid) = match (&entry, numeric) {
        (Some(entry), _) => (entry.uid, entry.gid),
        // As container engines do it: a bare number without an entry has the group 0. The default
        // user keeps the group that comes with it.
        (None, Some(uid)) => (uid, if spec.is_empty() { default.1 } else { 0 }),
        // A number that is too large for any id.
        (None, None) if is_number(&user) => return Err(out_of_range("user", user, last.uid)),
        (None, None) => return Err(UserError::NotFound { user }),
    };
    if uid == RESERVED_UID {
        return Err(UserError::Reserved);
    }
    if uid > last.uid {
        return Err(out_of_range("user", uid.to_string(), last.uid));
    }
    let gid = match wanted_group {
        Some(wanted) => find_group(wanted, group, last.gid)?,
        None => entry_gid,
    };
    if gid > last.gid {
        return Err(out_of_range("group", gid.to_string(), last.gid));
    }
    let mut groups = vec![gid];
    if let Some(entry) = &entry {
        for (id, members) in group.lines().filter_map(parse_group).map(|g| (g.1, g.2)) {
            if groups.len() < MAX_GROUPS
                && id <= last.gid
                && !groups.contains(&id)
                && members.split(',').any(|member| member == entry.name)
            {
                groups.push(id);
            }
        }
    }
    Ok(User {
        uid,
        gid,
        groups,
        name: entry.as_ref().map(|entry| entry.name.to_owned()),
        home: entry
            .map(|entry| entry.home)
            .filter(|home| !home.is_empty())
            .unwrap_or("/")
            .to_owned(),
    })
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn out_of_range(what: &'static str, id: String, last: u32) -> UserError {
    UserError::OutOfRange { what, id, last }
}

fn find_group(wanted: &str, group: &str, last: u32) -> Result<u32, UserError> {
    if let Ok(gid) = wanted.parse() {
        return Ok(gid);
    }
    let found = group
        .lines()
        .filter_map(parse_group)
        .find(|entry| entry.0 == wanted);
    match found {
        Some(entry) => Ok(entry.1),
        None if is_number(wanted) => Err(out_of_range("group", wanted.into(), last)),
        None => Err(UserError::GroupNotFound {
            group: wanted.into(),
        }),
    }
}

/// `name:password:uid:gid:comment:home:shell`
fn parse_entry(line: &str) -> Option<Entry<'_>> {
    let mut fields = line.split(':');
    let name = fields.next()?;
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    let home = fields.nth(1).unwrap_or("/");
    Some(Entry {
        name,
        uid,
        gid,
        home,
    })
}

/// `name:password:gid:member,member`
fn parse_group(line: &str) -> Option<(&str, u32, &str)> {
    let mut fields = line.split(':');
    let name = fields.next()?;
    let gid = fields.nth(1)?.parse().ok()?;
    Some((name, gid, fields.next().unwrap_or("")))
}

/// The text of a database file; what is missing, no regular file or unreadable counts as empty,
/// because an image need not have one. The file is the tenant's: it may be a FIFO, which must not
/// block us, and it may be huge.
fn read_database(path: &Path) -> String {
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    let Ok(file) = opened else {
        return String::new();
    };
    if !file.metadata().is_ok_and(|data| data.is_file()) {
        return String::new();
    }
    let mut bytes = Vec::new();
    match file.take(MAX_DATABASE_BYTES).read_to_end(&mut bytes) {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n# no entry\nana:x:1000:1001:Ana:/home/ana:/bin/sh\nsup:x:65535:65535::/:/x\n";
    const GROUP: &str = "root:x:0:\nana:x:1001:\nwheel:x:10:root,ana\nvideo:x:44:anastasia\n";

    const LAST: Last = Last {
        uid: 65535,
        gid: 65535,
    };

    fn ask(spec: &str) -> Result<User, UserError> {
        resolve_in(spec, (0, 0), PASSWD, GROUP, LAST)
    }

    #[test]
    fn a_name_brings_its_groups_and_home_and_a_bare_uid_has_none() {
        let ana = ask("ana").unwrap();
        assert_eq!((ana.uid, ana.gid, ana.groups), (1000, 1001, vec![1001, 10]));
        assert_eq!(ana.home, "/home/ana");
        let bare = ask("4000").unwrap();
        assert_eq!((bare.uid, bare.gid, bare.groups), (4000, 0, vec![0]));
        assert_eq!(bare.home, "/");
        assert_eq!(ask("4000:wheel").unwrap().gid, 10);
        assert_eq!(ask("").unwrap().home, "/root");
    }

    #[test]
    fn the_supervisors_own_uid_is_refused_by_number_and_by_name() {
        assert_eq!(ask("65535"), Err(UserError::Reserved));
        assert_eq!(ask("sup"), Err(UserError::Reserved));
    }

    #[test]
    fn an_id_that_the_sandbox_does_not_have_is_told_with_those_that_it_has() {
        for (spec, what, id) in [
            ("65536", "user", "65536"),
            ("4294967295", "user", "4294967295"),
            ("99999999999", "user", "99999999999"),
            ("1000:65536", "group", "65536"),
            ("1000:4294967295", "group", "4294967295"),
            ("ana:99999999999", "group", "99999999999"),
        ] {
            let error = ask(spec).unwrap_err();
            assert_eq!(error, out_of_range(what, id.into(), 65535), "{spec}");
            assert!(error.to_string().ends_with("only 0 to 65535"), "{error}");
        }
        // What would keep the supervisor's own is none where nothing bounds the ids, either.
        let any = Last {
            uid: Last::ANY,
            gid: Last::ANY,
        };
        for spec in ["4294967295", "0:4294967295"] {
            let asked = resolve_in(spec, (0, 0), "", "", any);
            assert!(matches!(asked, Err(UserError::OutOfRange { .. })), "{spec}");
        }
        assert_eq!(
            last_of_map("         0  268435456      65536\n"),
            Some(65535)
        );
        assert_eq!(last_of_map("0 0 4294967295\n"), Some(Last::ANY));
        assert_eq!(last_of_map("0 1000 1\n1 100000 65536\n"), Some(65536));
        assert_eq!(last_of_map(""), None);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let error = ask("bob").unwrap_err();
        assert_eq!(error, UserError::NotFound { user: "bob".into() });
        let error = ask("ana:staff").unwrap_err();
        assert_eq!(
            error,
            UserError::GroupNotFound {
                group: "staff".into()
            }
        );
        assert!(matches!(ask("ana:"), Err(UserError::Malformed { .. })));
    }
}
