//! Places in a profile: a run of a timer has no shell that expands them, and no directory that they could begin in.

use super::file::Profile;
use clap::{Arg, ValueHint};
use fullbore_format::error::{Error, ErrorKind, Result};
use std::path::PathBuf;

/// Returns a location, or a path of this host, as the commands get it: `~/` is the home directory of the user.
///
/// # Errors
/// [`ErrorKind::Usage`] for the home of another user, for a variable, and for a relative path.
pub(super) fn place_of(key: &str, text: &str) -> Result<String> {
    place_in(key, text, std::env::home_dir())
}

fn place_in(key: &str, text: &str, home: Option<PathBuf>) -> Result<String> {
    let refused = |why: &str, hint: &'static str| {
        let message = format!("cannot use {text:?} for {key:?}");
        Err(Error::new(ErrorKind::Usage, message)
            .because(why)
            .hint(hint))
    };
    if let Some(prefix) = text.strip_prefix("volumes:") {
        return place_in(key, prefix, home).map(|place| format!("volumes:{place}"));
    }
    let is_elsewhere = text.contains("://") || text.starts_with("tape:") || text == "-";
    if text.starts_with('/') || is_elsewhere {
        return Ok(text.to_owned());
    }
    let below = match text {
        "~" => Some(""),
        text => text.strip_prefix("~/"),
    };
    match (below, home.as_ref().and_then(|home| home.to_str())) {
        (Some(below), Some(home)) => Ok(format!("{}/{below}", home.trim_end_matches('/'))
            .trim_end_matches('/')
            .to_owned()),
        (Some(_), None) => refused(
            "the home directory of this user is not known",
            "write the path from / on",
        ),
        (None, _) if text.starts_with('~') => refused(
            "only ~/ is known here: the home directory of the user who runs the command",
            "write the path from / on",
        ),
        (None, _) if text.starts_with('$') => refused(
            "a profile knows no variables",
            "write the path from / on; ~/ is the home directory of the user who runs the command",
        ),
        (None, _) => refused(
            "it is relative, and a timer runs the command in another directory",
            "write the path from / on",
        ),
    }
}

/// Returns whether the value of an option is a file or a directory of this host.
pub(super) fn is_place(arg: &Arg) -> bool {
    matches!(
        arg.get_value_hint(),
        ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath
    )
}

/// Returns whether the sources of a profile are paths of this host: not of another one, and no words of a command.
pub(super) fn are_sources_here(profile: &Profile) -> bool {
    let of_backup = profile.of_command.get("backup").into_iter().flatten();
    let mut options = of_backup.chain(&profile.common);
    !options.any(|option| matches!(&option.name[..], "on" | "stdin-from-command"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_home_is_expanded_and_nothing_depends_on_a_directory() {
        let place = |text: &str| place_in("sources", text, Some("/home/ana".into()));
        for (text, expected) in [
            ("~/Documents", "/home/ana/Documents"),
            ("~", "/home/ana"),
            ("~/", "/home/ana"),
            ("/srv/~x/$y", "/srv/~x/$y"),
            ("ssh://db1/srv", "ssh://db1/srv"),
            ("s3://vault/$x", "s3://vault/$x"),
            ("postgres:///shop", "postgres:///shop"),
            ("volumes:~/disk/v", "volumes:/home/ana/disk/v"),
            ("tape:/dev/nst0", "tape:/dev/nst0"),
        ] {
            assert_eq!(place(text).unwrap(), expected);
        }
        for (text, why) in [
            ("~bob/x", "only ~/ is known"),
            ("$HOME/x", "no variables"),
            ("disk/y", "relative"),
            ("./y", "relative"),
            ("volumes:v", "relative"),
            ("", "relative"),
        ] {
            let error = place(text).unwrap_err();
            assert!(error.line().contains(why), "{text}: {}", error.line());
        }
        assert!(
            place_in("key", "~/x", None)
                .unwrap_err()
                .line()
                .contains("not known")
        );
    }
}
