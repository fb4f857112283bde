//! `fullbore systemd`: units that run a profile every night, with the rights that it needs.

use super::run::{named_profile, step_words};
use crate::cli::{
    options::PLAIN_EXIT_CODES,
    output::{aside, told},
    profile::{self, NamedProfile},
};
use clap::{Args, ValueHint};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::EntryName,
    text,
};
use fullbore_storage::Location;
use serde_json::{Value, json};
use std::{
    env,
    ffi::OsString,
    fmt::Write as _,
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

/// `fullbore systemd`.
#[derive(Debug, Args)]
#[command(after_help = PLAIN_EXIT_CODES)]
pub(in crate::cli) struct SystemdArgs {
    /// The profile
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Write the service and the timer into this directory instead
    ///
    /// The files are fullbore-NAME.service and fullbore-NAME.timer.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    to: Option<PathBuf>,
    #[arg(from_global)]
    json: bool,
}

/// Prints the units, or writes them into a directory.
pub(in crate::cli) fn run(args: SystemdArgs) -> Result<u8> {
    let profile = named_profile("systemd")?;
    check_unit_name(&profile.name)?;
    let needs = UnitNeeds::of(profile)?;
    let name = |kind: &str| format!("fullbore-{}.{kind}", profile.name);
    let timer = name("timer");
    let mut units = vec![
        (name("service"), needs.service()?),
        (timer.clone(), needs.timer()),
    ];
    if !is_installed(ALERT_UNIT, args.to.as_deref()) {
        units.push((ALERT_UNIT.to_owned(), ALERT_TEXT.to_owned()));
    }
    let Some(dir) = args.to else {
        if args.json {
            return told(|out| text::json(out, &units_json(&units, None)).map(|()| 0));
        }
        return told(|out| {
            units.iter().try_for_each(|(name, text)| {
                text::line(out, &format!("# /etc/systemd/system/{name}\n{text}"))
            })?;
            Ok(0)
        });
    };
    for (name, text) in &units {
        let file = dir.join(name);
        let failed = |e| Error::io(format!("could not write {file:?}"), e);
        fs::write(&file, text).map_err(failed)?;
    }
    if args.json {
        return told(|out| text::json(out, &units_json(&units, Some(&dir))).map(|()| 0));
    }
    aside(format_args!(
        "{timer} is in {dir:?}; `systemctl daemon-reload` and `systemctl enable --now {timer}` start it"
    ));
    Ok(0)
}

/// The units as JSON, and the directory into which they were written.
fn units_json(units: &[(String, String)], dir: Option<&Path>) -> Value {
    let units = units.iter();
    let units: Vec<_> = units
        .map(|(name, text)| json!({"name": name, "text": text}))
        .collect();
    let directory = dir.map(|dir| EntryName(dir.as_os_str().as_bytes().to_vec()));
    json!({"type": "result", "units": units, "directory": directory})
}

/// The unit that mails root about a failure of another one.
const ALERT_UNIT: &str = "fullbore-alert@.service";
const ALERT_TEXT: &str = include_str!("fullbore-alert@.service");

/// Directories in which systemd finds units of packages and of the administrator.
const UNIT_DIRS: [&str; 3] = [
    "/etc/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Does systemd know the unit, or is it in `dir`? Then its text may be the administrator's.
fn is_installed(unit: &str, dir: Option<&Path>) -> bool {
    let known = UNIT_DIRS.iter().map(Path::new);
    known.chain(dir).any(|dir| dir.join(unit).exists())
}

/// Refuses a profile whose name cannot be a part of the name of a unit.
fn check_unit_name(profile: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":_.-".contains(c);
    if profile.chars().all(is_plain) {
        return Ok(());
    }
    let message = format!("cannot make a unit of the profile {profile:?}");
    Err(Error::new(ErrorKind::Usage, message)
        .because("names of units have letters, digits and the characters : _ . -"))
}

/// What the units of a profile must allow.
struct UnitNeeds {
    profile: String,
    /// The command of the service.
    command: String,
    /// Is a PostgreSQL server backed up?
    is_cluster: bool,
    /// Is the repository on another host?
    is_remote: bool,
    /// Is the repository in an object store, to which the environment has the credentials?
    is_in_store: bool,
    /// Directories that are written to.
    written: Vec<PathBuf>,
    /// Directories for temporary files, if the source has them: the service cannot have its own then.
    shares_temporary: bool,
    has_hooks: bool,
    /// Does a repository belong to another user than root, as one that hosts add to over ssh?
    changes_anothers: bool,
}

impl UnitNeeds {
    fn of(profile: &NamedProfile) -> Result<Self> {
        let words = step_words(profile, "backup");
        let target = words.value("to").ok_or_else(|| {
            let message = format!("the profile {:?} has no repository", profile.name);
            Error::new(ErrorKind::Usage, message)
        })?;
        let location = Location::parse(target)?;
        let sources = &profile.profile.sources;
        let is_url = |source: &String| source.starts_with("postgres");
        let has_settings = words.has("connect");
        let metrics = profile.words_of(&["run", &profile.name]);
        let metrics = metrics.value("metrics").map(PathBuf::from);
        let further = profile.profile.also.iter();
        let further = further.map(|name| Location::parse(name.as_ref()));
        let further = further.collect::<Result<Vec<_>>>()?;
        let all = [&location].into_iter().chain(&further);
        let local = all.filter_map(|location| location.as_local());
        let mut written: Vec<_> = local.map(Path::to_owned).collect();
        let changes_anothers = written.iter().any(|path| is_of_another_user(path));
        written.extend(metrics.and_then(|file| file.parent().map(Path::to_owned)));
        // The unit names these directories, and systemd does not know where the command would run.
        if let Some(relative) = written.iter().find(|path| !path.is_absolute()) {
            let message = format!("cannot make a unit: {relative:?} is not an absolute path");
            return Err(Error::new(ErrorKind::Usage, message));
        }
        Ok(Self {
            profile: profile.name.clone(),
            command: command_of(profile)?,
            is_cluster: has_settings || sources.iter().any(is_url),
            is_remote: [&location]
                .into_iter()
                .chain(&further)
                .any(|location| location.as_local().is_none()),
            is_in_store: [&location]
                .into_iter()
                .chain(&further)
                .any(|location| matches!(location, Location::Cloud { .. })),
            changes_anothers,
            written,
            shares_temporary: sources.iter().any(|source| has_temporary(source)),
            has_hooks: !profile.profile.hooks.0.is_empty(),
        })
    }

    fn service(&self) -> Result<String> {
        let mut text = String::new();
        let after = if self.is_cluster {
            " postgresql.service"
        } else {
            ""
        };
        let _ = write!(
            text,
            "[Unit]\nDescription=Backup of the profile {}\nDocumentation=man:fullbore-run(1)\n\
             Wants=network-online.target\nAfter=network-online.target remote-fs.target{after}\n\
             # Mails root, with any exit code but 0; another unit can take its place.\nOnFailure=fullbore-alert@%n.service\n\n\
             [Service]\nType=oneshot\nExecStart={}\n",
            self.profile, self.command
        );
        if self.is_cluster {
            text += "User=postgres\n";
        }
        if self.is_in_store {
            let _ = writeln!(
                text,
                "# Credentials of the object store, such as AWS_ACCESS_KEY_ID=…; nobody else may read the file.\n\
                 EnvironmentFile=-/etc/fullbore/{}.env",
                self.profile
            );
        }
        text +=
            "Nice=10\nIOSchedulingClass=idle\nUMask=0077\n\n# The caches and lists of fullbore.\n";
        let _ = write!(
            text,
            "StateDirectory=fullbore-{0}\nCacheDirectory=fullbore-{0}\nStateDirectoryMode=0700\nCacheDirectoryMode=0700\n\
             Environment=FULLBORE_STATE_DIR=%S/fullbore-{0} XDG_CACHE_HOME=%C/fullbore-{0}\n\n",
            self.profile
        );
        text += &self.file_rules()?;
        text += &self.right_rules();
        Ok(text)
    }

    /// The lines of the unit that make all files read-only, except those that the run writes.
    fn file_rules(&self) -> Result<String> {
        let mut text = "# All is read-only but these.\nProtectSystem=strict\n".to_owned();
        for path in &self.written {
            let _ = writeln!(text, "ReadWritePaths={}", optional_path(path)?);
        }
        text += if self.shares_temporary {
            "ReadWritePaths=/tmp /var/tmp\n"
        } else {
            "PrivateTmp=yes\n"
        };
        Ok(text)
    }

    fn right_rules(&self) -> String {
        let families = if self.is_remote || self.is_cluster || self.has_hooks {
            "AF_UNIX AF_INET AF_INET6 AF_NETLINK"
        } else {
            "AF_UNIX"
        };
        let mut text = format!("\nRestrictAddressFamilies={families}\n");
        text += match (self.has_hooks, self.is_cluster) {
            (true, _) => {
                "# Hooks may need more: `CapabilityBoundingSet=CAP_DAC_READ_SEARCH CAP_FOWNER` and\n\
                 # `SystemCallFilter=@system-service` are enough without them.\n"
            }
            (false, true) => {
                "CapabilityBoundingSet=\nSystemCallFilter=@system-service\nSystemCallErrorNumber=EPERM\n"
            }
            (false, false) if self.changes_anothers => {
                "# Root may read every file, and change the repository of another user; what is new in it belongs to that user.\n\
                 CapabilityBoundingSet=CAP_DAC_READ_SEARCH CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER\n\
                 SystemCallFilter=@system-service\nSystemCallErrorNumber=EPERM\n"
            }
            (false, false) => {
                "# Root may read every file.\nCapabilityBoundingSet=CAP_DAC_READ_SEARCH CAP_FOWNER\n\
                 SystemCallFilter=@system-service\nSystemCallErrorNumber=EPERM\n"
            }
        };
        if !self.is_remote && !self.is_cluster && !self.has_hooks {
            text += "PrivateNetwork=yes\nIPAddressDeny=any\n";
        }
        text += HARDENED;
        text
    }

    fn timer(&self) -> String {
        format!(
            "[Unit]\nDescription=Nightly backup of the profile {}\n\n[Timer]\nOnCalendar=*-*-* 02:00\n\
             RandomizedDelaySec=20m\nPersistent=yes\n\n[Install]\nWantedBy=timers.target\n",
            self.profile
        )
    }
}

/// Rules that no backup needs an exception from.
const HARDENED: &str = "\
NoNewPrivileges=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
KeyringMode=private
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
";

/// The command of the service: the path of this program, and the profile.
fn command_of(profile: &NamedProfile) -> Result<String> {
    let failed = |e| Error::io("could not find the path of this program", e);
    let mut command = unit_word(&env::current_exe().map_err(failed)?)?;
    for word in run_words(profile)? {
        let _ = write!(command, " {}", unit_word(Path::new(&word))?);
    }
    Ok(command)
}

/// The words behind the name of this program that run a profile, in any directory.
///
/// # Errors
/// The system's.
pub(super) fn run_words(profile: &NamedProfile) -> Result<Vec<OsString>> {
    let failed = |e| Error::io("could not find the profile", e);
    let file = std::path::absolute(&profile.file).map_err(failed)?;
    Ok(match file.starts_with(profile::SYSTEM) {
        true => vec!["run".into(), profile.name.clone().into()],
        false => vec!["run".into(), "--config".into(), file.into()],
    })
}

/// A word of a command in a unit.
///
/// # Errors
/// [`ErrorKind::Usage`] for a word that is not text.
pub(super) fn unit_word(path: &Path) -> Result<String> {
    let text = unit_text(path)?;
    if text.contains([' ', '"', '\'', '\\', '$', ';']) {
        Ok(quoted(&text.replace('$', "$$")))
    } else {
        Ok(text)
    }
}

/// A variable of `Environment=`, as `NAME=value`. There `$` stands for itself.
///
/// # Errors
/// [`ErrorKind::Usage`] for a value that is not text.
pub(super) fn unit_variable(assignment: &Path) -> Result<String> {
    Ok(quoted(&unit_text(assignment)?))
}

/// Text in quotes of a unit.
fn quoted(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{text}\"")
}

/// A path in a list of paths, which may be missing. In such a list `\` and `$` stand for themselves.
fn optional_path(path: &Path) -> Result<String> {
    let text = unit_text(path)?;
    if !text.contains([' ', '"', '\'']) {
        return Ok(format!("-{text}"));
    }
    let quote = ['"', '\''].into_iter().find(|quote| !text.contains(*quote));
    let quote = quote.ok_or_else(|| unfit_path(path))?;
    Ok(format!("{quote}-{text}{quote}"))
}

/// A path as text, in which `%` stands for itself. So a setting has it that takes one path.
///
/// # Errors
/// [`ErrorKind::Usage`] for a path that is not text.
pub(super) fn unit_text(path: &Path) -> Result<String> {
    let text = path
        .to_str()
        .filter(|text| !text.contains(char::is_control));
    let text = text.ok_or_else(|| unfit_path(path))?;
    Ok(text.replace('%', "%%"))
}

fn unfit_path(path: &Path) -> Error {
    let message = format!("cannot make a unit: it cannot name the path {path:?}");
    Error::new(ErrorKind::Usage, message)
}

/// Returns whether a repository is there and belongs to another user than root.
fn is_of_another_user(repository: &Path) -> bool {
    fs::metadata(repository).is_ok_and(|found| found.uid() != 0)
}

/// Has a source directories for temporary files, or is it in one?
fn has_temporary(source: &str) -> bool {
    let source = Path::new(source);
    let temporary = ["/tmp", "/var/tmp"].map(Path::new);
    temporary
        .into_iter()
        .any(|dir| dir.starts_with(source) || source.starts_with(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_blanks_or_quotes_is_one_word_of_a_unit() {
        for (path, word, listed) in [
            ("/mnt/disk", "/mnt/disk", "-/mnt/disk"),
            ("/mnt/my disk", r#""/mnt/my disk""#, r#""-/mnt/my disk""#),
            ("/a%b", "/a%%b", "-/a%%b"),
            (r#"/a "b""#, r#""/a \"b\"""#, r#"'-/a "b"'"#),
            (r"/a\b", r#""/a\\b""#, r"-/a\b"),
            ("/it's", r#""/it's""#, r#""-/it's""#),
        ] {
            assert_eq!(unit_word(Path::new(path)).unwrap(), word);
            assert_eq!(optional_path(Path::new(path)).unwrap(), listed);
        }
        assert!(optional_path(Path::new("/a\"b'c")).is_err());
        assert!(unit_word(Path::new("/a\nb")).is_err());
        assert!(check_unit_name("my web").is_err() && check_unit_name("web-1.x").is_ok());
    }
}
