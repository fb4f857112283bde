//! The files in which profiles are: those of the user, then those of the system.

use super::file::unknown;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{guarded_path::GuardedPath, user_id};
use std::{
    env,
    ffi::OsStr,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

/// Profiles of the system.
pub(in crate::cli) const SYSTEM: &str = "/etc/fullbore";
/// Bytes of a profile at most.
const MAX_BYTES: u64 = 1 << 20;

/// The directories that have profiles; the first with a name wins.
pub(super) fn directories() -> Vec<PathBuf> {
    let home = || Some(absolute_variable("HOME")?.join(".config"));
    let user = absolute_variable("XDG_CONFIG_HOME").or_else(home);
    let user = user.map(|dir| dir.join("fullbore"));
    user.into_iter().chain([SYSTEM.into()]).collect()
}

fn absolute_variable(name: &str) -> Option<PathBuf> {
    let dir = env::var_os(name).map(PathBuf::from);
    dir.filter(|dir| dir.is_absolute())
}

/// The file of a profile.
///
/// # Errors
/// [`ErrorKind::Usage`] for what is no name; [`ErrorKind::NotFound`] if no directory has it.
pub(super) fn find(name: &OsStr, directories: &[PathBuf]) -> Result<PathBuf> {
    let bytes = name.as_encoded_bytes();
    if bytes.is_empty() || bytes.contains(&b'/') || bytes.starts_with(b".") {
        let message = format!("{name:?} is no name of a profile");
        return Err(
            Error::new(ErrorKind::Usage, message).hint("`--config FILE` takes the path of a file")
        );
    }
    let files = directories.iter().map(|dir| file_in(dir, name));
    match files.into_iter().find(|file| file.exists()) {
        Some(file) => Ok(file),
        None => Err(not_found(name, directories)),
    }
}

fn file_in(dir: &Path, name: &OsStr) -> PathBuf {
    let mut file = name.to_owned();
    file.push(".toml");
    dir.join(file)
}

fn not_found(name: &OsStr, directories: &[PathBuf]) -> Error {
    let files: Vec<_> = directories
        .iter()
        .map(|dir| format!("{:?}", file_in(dir, name)))
        .collect();
    let message = format!(
        "there is no profile {name:?}: no file {}",
        files.join(" or ")
    );
    let names: Vec<_> = names(directories);
    let text = name.to_string_lossy();
    let error = unknown(message, &text, names.iter().map(|(name, _)| &name[..]));
    let error = Error {
        kind: ErrorKind::NotFound,
        ..error
    };
    match error.hint {
        Some(_) => error,
        None => {
            error.hint("write one of these files; `fullbore config check` reads all that there are")
        }
    }
}

/// The names of all profiles, and their files.
pub(super) fn names(directories: &[PathBuf]) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    for dir in directories {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let file = entry.path();
            let name = entry.file_name().into_string().unwrap_or_default();
            let Some(name) = name.strip_suffix(".toml") else {
                continue;
            };
            if found.iter().all(|(known, _)| known != name) {
                found.push((name.to_owned(), file));
            }
        }
    }
    found.sort();
    found
}

/// The text of a profile, and who else could have written it.
#[derive(Debug)]
pub(super) struct ProfileText {
    pub(super) text: String,
    /// The first file or directory on the way to it that another user may change.
    pub(super) changeable: Option<PathBuf>,
}

/// Reads a profile. It is opened once: owner and mode are those of the file whose text is returned.
///
/// # Errors
/// The system's; [`ErrorKind::Usage`] for a file that is too large; [`ErrorKind::Permission`] if this process
/// is root and another user may change the file or a directory above.
pub(super) fn read(file: &Path) -> Result<ProfileText> {
    let failed = |e| Error::io(format!("could not read the profile {file:?}"), e);
    let reached = GuardedPath::reach(file).map_err(failed)?;
    if let Some(changeable) = &reached.changeable
        && user_id() == 0
    {
        return Err(changeable_error("read", file, changeable));
    }
    let mut text = String::new();
    let opened = reached.open().map_err(failed)?;
    let mut limited = opened.take(MAX_BYTES + 1);
    limited.read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_BYTES {
        let message = format!("{file:?} is too large for a profile");
        return Err(Error::new(ErrorKind::Usage, message));
    }
    Ok(ProfileText {
        text,
        changeable: reached.changeable,
    })
}

/// The error of a profile that another user may change. Its options name commands, keys and places, so
/// whoever writes it acts with the rights of this process.
pub(super) fn changeable_error(verb: &str, file: &Path, changeable: &Path) -> Error {
    let message = format!("cannot {verb} the profile {file:?}");
    let path = changeable.display();
    Error::new(ErrorKind::Permission, message)
        .because(format!("another user may change {changeable:?}"))
        .hint(format!(
            "`chown root {path}` and `chmod go-w {path}`, or run the command as the owner of the profile"
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_directory_with_a_name_wins_and_a_missing_name_gets_the_nearest() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = ["user", "system"].map(|name| dir.path().join(name));
        for (index, name) in [(0, "web"), (1, "web"), (1, "database")] {
            fs::create_dir_all(&dirs[index]).unwrap();
            fs::write(dirs[index].join(format!("{name}.toml")), "").unwrap();
        }
        assert_eq!(
            find("web".as_ref(), &dirs).unwrap(),
            dirs[0].join("web.toml")
        );
        assert_eq!(
            find("database".as_ref(), &dirs).unwrap(),
            dirs[1].join("database.toml")
        );
        let missing = find("databse".as_ref(), &dirs).unwrap_err();
        assert_eq!(missing.kind, ErrorKind::NotFound);
        assert!(missing.hint.unwrap().contains("\"database\""));
        for bad in ["", "../web", "/etc/x"] {
            assert_eq!(
                find(bad.as_ref(), &dirs).unwrap_err().kind,
                ErrorKind::Usage
            );
        }
        let found: Vec<_> = names(&dirs).into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, ["database", "web"]);
    }
}
