//! Reads libpq's two files: services and passwords.

use super::{
    connection_secret::ConnectionSecret,
    parse::{self, Given},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

/// Returns the parameters of a service, from the first of `files` that has it. A missing file has
/// no services.
///
/// # Errors
/// [`ErrorKind::NotFound`] if no file has the service, [`ErrorKind::Usage`] if a keyword is
/// unknown.
pub(super) fn read_service(name: &str, files: &[impl AsRef<Path>]) -> Result<Given> {
    for file in files.iter().map(AsRef::as_ref) {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            // As libpq: the file of the system serves where the user has none.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                return Err(Error::io(
                    format!("could not read the service file {file:?}"),
                    error,
                ));
            }
        };
        let found = section(name, &text)
            .map_err(|error| error.detail(format!("in the service file {file:?}")))?;
        if let Some(given) = found {
            return Ok(given);
        }
    }
    let looked: Vec<_> = files
        .iter()
        .map(|file| format!("{:?}", file.as_ref()))
        .collect();
    Err(Error::new(
        ErrorKind::NotFound,
        format!("there is no service {name:?} in {}", looked.join(" or ")),
    ))
}

/// Returns the parameters below `[name]`, up to the next section; `None` without that section.
fn section(name: &str, text: &str) -> Result<Option<Given>> {
    let heading = format!("[{name}]");
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut lines = lines.skip_while(|line| *line != heading);
    if lines.next().is_none() {
        return Ok(None);
    }
    let mut given = Given::new();
    for line in lines.take_while(|line| !line.starts_with('[')) {
        let (key, value) = line.split_once('=').ok_or_else(|| {
            Error::new(
                ErrorKind::Usage,
                format!("a line of service {name:?} has no \"=\""),
            )
        })?;
        match parse::keyword(key.trim())? {
            // As in libpq: a service does not refer to another.
            "service" | "servicefile" => {
                return Err(Error::new(
                    ErrorKind::Usage,
                    format!("service {name:?} names another service"),
                ));
            }
            // As in libpq: the first of two lines counts.
            key => given.entry(key).or_insert_with(|| value.trim().to_owned()),
        };
    }
    Ok(Some(given))
}

/// Returns the lines of a password file, or a warning why it is ignored.
///
/// As in libpq, a missing file is empty, and a file that others may read is ignored with a warning.
pub(super) fn read_passwords(file: &Path) -> Result<Vec<[String; 5]>, String> {
    let Ok(meta) = fs::metadata(file) else {
        return Ok(Vec::new());
    };
    if !meta.is_file() {
        return Err(format!(
            "the password file {file:?} is ignored: it is not a regular file"
        ));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(format!(
            "the password file {file:?} is ignored: others may read it; make it u=rw (0600)"
        ));
    }
    let text = fs::read(file).map_err(|error| {
        format!(
            "the password file {file:?} is ignored: {}",
            fullbore_format::error::reason(&error)
        )
    })?;
    Ok(String::from_utf8_lossy(&text)
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(split_fields)
        .collect())
}

/// Splits `host:port:database:user:password`. A backslash makes the next character literal.
fn split_fields(line: &str) -> Option<[String; 5]> {
    let mut fields = <[String; 5]>::default();
    let mut index = 0;
    let mut chars = line.chars();
    while let Some(next) = chars.next() {
        match next {
            // An escaped star is not a wildcard; it stays escaped until the comparison.
            '\\' if chars.as_str().starts_with('*') && index < 4 => fields[index].push('\\'),
            '\\' => fields[index].extend(chars.next()),
            ':' if index < 4 => index += 1,
            other => fields[index].push(other),
        }
    }
    (index == 4).then_some(fields)
}

/// Returns the password of the first line that matches host, port, database and user.
pub(super) fn find_password(
    lines: &[[String; 5]],
    wanted: [&str; 4],
    file: &Path,
) -> Option<ConnectionSecret> {
    let line = lines.iter().find(|line| {
        line.iter()
            .zip(wanted)
            .all(|(said, given)| said == "*" || said.replace("\\*", "*") == given)
    })?;
    Some(ConnectionSecret {
        text: line[4].clone(),
        from: format!("{file:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    #[test]
    fn a_service_ends_where_the_next_begins() {
        let text = "# ours\nhost=no\n[a]\nhost=one\nport=1\nhost=two\n\n[b]\ndbname=x y\n";
        let given = section("a", text).unwrap().unwrap();
        assert_eq!(
            given,
            [("host", "one".to_owned()), ("port", "1".to_owned())].into()
        );
        assert_eq!(section("b", text).unwrap().unwrap()["dbname"], "x y");
        assert_eq!(section("c", text).unwrap(), None);
        assert!(section("d", "[d]\nservice=a").is_err());
        assert_eq!(
            section("d", "[d]\nhots=a").unwrap_err().what,
            "there is no connection parameter \"hots\""
        );
    }

    #[test]
    fn the_first_line_that_matches_gives_the_password() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pgpass");
        let text = "#h:*:*:*:comment\nshort:line\nh:5432:db:me:on\\:e\\\\\nh:*:*:me:two:2\n*:*:*:\\*:star\n::1:*\n";
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let lines = read_passwords(&file).unwrap();
        let password_of = |wanted| find_password(&lines, wanted, &file).map(|secret| secret.text);
        assert_eq!(password_of(["h", "5432", "db", "me"]).unwrap(), "on:e\\");
        assert_eq!(password_of(["h", "5433", "db", "me"]).unwrap(), "two:2");
        assert_eq!(password_of(["h", "5433", "db", "you"]), None);
        assert_eq!(password_of(["h", "5433", "db", "*"]).unwrap(), "star");
    }

    #[test]
    fn a_password_file_that_others_may_read_is_ignored_with_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pgpass");
        assert_eq!(read_passwords(&file).unwrap().len(), 0);
        fs::write(&file, "*:*:*:*:x\n").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        assert!(
            read_passwords(&file)
                .unwrap_err()
                .contains("others may read it")
        );
        assert!(
            read_passwords(dir.path())
                .unwrap_err()
                .contains("not a regular file")
        );
    }
}
