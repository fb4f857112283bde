//! Checks settings for a restored server, which does not start with one that it does not know.
//!
//! `settings.txt` has the settings of PostgreSQL 13 to 18 as `pg_settings` of 13, 15, 17 and 18 lists them: name, type, and where not all
//! versions have it, the first and the last major version that may have it. A version that is newer than the list may have others.

use fullbore_format::error::{Error, ErrorKind, Result};

const KNOWN: &str = include_str!("settings.txt");
/// The newest version in the list.
const NEWEST: u32 = 18;
const UNITS: [&str; 11] = [
    "B", "kB", "MB", "GB", "TB", "us", "ms", "s", "min", "h", "d",
];

struct ServerSetting<'a> {
    kind: &'a str,
    first: u32,
    last: u32,
}

impl ServerSetting<'static> {
    /// Returns the setting of this name, in any version.
    fn find(name: &str) -> Option<Self> {
        let line = KNOWN.lines().find_map(|line| {
            let (known, facts) = line.split_once(' ')?;
            known.eq_ignore_ascii_case(name).then_some(facts)
        })?;
        let mut facts = line.split(' ');
        let kind = facts.next()?;
        let mut version = |otherwise| {
            let version = facts.next().and_then(|version| version.parse().ok());
            version.unwrap_or(otherwise)
        };
        Some(Self {
            kind,
            first: version(0),
            last: version(u32::MAX),
        })
    }
}

/// Checks that a server of this major version knows these settings, and that their values are of the right type.
///
/// Settings of extensions, which have a dot in their names, are not known here.
///
/// # Errors
/// [`ErrorKind::Usage`].
pub(crate) fn check(settings: &[(String, String)], major: u32) -> Result<()> {
    settings
        .iter()
        .filter(|(name, _)| !name.contains('.'))
        .try_for_each(|(name, value)| check_one(name, value, major))
}

fn check_one(name: &str, value: &str, major: u32) -> Result<()> {
    match ServerSetting::find(name) {
        None if major > NEWEST => Ok(()),
        None => cannot_set(name, no_such_setting(major)),
        Some(known) if major < known.first || major > known.last => {
            cannot_set(name, no_such_setting(major))
        }
        Some(known) if !fits(known.kind, value) => cannot_set(
            name,
            format!(
                "{value:?} is not a value of type {}; a comment behind it would be part of it",
                known.kind
            ),
        ),
        Some(_) => Ok(()),
    }
}

fn no_such_setting(major: u32) -> String {
    format!("PostgreSQL {major} has no such setting, and would not start")
}

fn cannot_set(name: &str, reason: String) -> Result<()> {
    let message = format!("cannot set {name:?}: {reason}");
    Err(Error::new(ErrorKind::Usage, message))
}

/// Returns whether the server may read this value; ranges and lists of words are not checked.
fn fits(kind: &str, value: &str) -> bool {
    let value = value.trim();
    match kind {
        "bool" => is_bool(&value.to_ascii_lowercase()),
        "integer" | "real" => is_number(value),
        "enum" => !value.contains(['#', ' ', '\t']),
        _ => true,
    }
}

/// As `parse_bool` of the server: the beginning of a word is enough if no other word begins so.
fn is_bool(value: &str) -> bool {
    let is_word = ["true", "false", "yes", "no"]
        .iter()
        .any(|word| word.starts_with(value));
    !value.is_empty() && (is_word || ["on", "of", "off", "1", "0"].contains(&value))
}

/// As `parse_int` and `parse_real` of the server: a number, in C's notations, and a unit.
fn is_number(value: &str) -> bool {
    let hex = value
        .strip_prefix("0x")
        .or_else(|| value.strip_prefix("0X"));
    let (number, rest) = match hex {
        Some(digits) => split_at_end(digits, |c| c.is_ascii_hexdigit()),
        None => split_at_end(value, |c| c.is_ascii_digit() || "+-.".contains(c)),
    };
    // `e` begins an exponent only before a digit or a sign; otherwise it begins a unit.
    let exponent = rest
        .strip_prefix(['e', 'E'])
        .filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c)));
    let rest = exponent.map_or(rest, |exponent| {
        split_at_end(exponent, |c| c.is_ascii_digit() || "+-".contains(c)).1
    });
    let is_number = hex.is_some() && !number.is_empty() || number.parse::<f64>().is_ok();
    let unit = rest.trim();
    is_number && (unit.is_empty() || UNITS.contains(&unit))
}

fn split_at_end(text: &str, is_part: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str, value: &str, major: u32) -> Option<String> {
        let settings = [(name.to_owned(), value.to_owned())];
        check(&settings, major).err().map(|error| error.what)
    }

    #[test]
    fn settings_that_the_version_does_not_have_are_refused() {
        for major in [13, 15, 18] {
            let why = refusal("nosuch", "1", major).unwrap();
            assert!(why.contains("has no such setting"), "{why}");
            assert_eq!(refusal("port", "5433", major), None);
            assert_eq!(refusal("Work_Mem", "64MB", major), None);
            assert_eq!(refusal("my_extension.nosuch", "x y # z", major), None);
        }
        assert_eq!(refusal("nosuch", "1", 19), None);
        assert!(refusal("io_method", "sync", 17).is_some());
        assert_eq!(refusal("io_method", "sync", 18), None);
        assert!(refusal("vacuum_defer_cleanup_age", "1", 18).is_some());
        assert_eq!(refusal("vacuum_defer_cleanup_age", "1", 15), None);
    }

    #[test]
    fn values_of_another_type_are_refused() {
        for (name, value) in [
            ("port", "5433 # mine"),
            ("port", "x"),
            ("port", ""),
            ("fsync", "off # quick"),
            ("fsync", "o"),
            ("fsync", "maybe"),
            ("work_mem", "64 mb"),
            ("archive_mode", "off # no"),
        ] {
            assert!(refusal(name, value, 15).is_some(), "{name}={value}");
        }
        for (name, value) in [
            ("port", " 5433 "),
            ("work_mem", "64 MB"),
            ("work_mem", "1.5GB"),
            ("log_file_mode", "0640"),
            ("checkpoint_completion_target", "9e-1"),
            ("max_wal_size", "0x400MB"),
            ("max_slot_wal_keep_size", "-1"),
            ("fsync", "OFF"),
            ("fsync", "t"),
            ("archive_mode", "always"),
            ("archive_command", "cp %p /a/%f # b"),
            ("log_line_prefix", ""),
        ] {
            assert_eq!(refusal(name, value, 15), None, "{name}={value}");
        }
    }
}
