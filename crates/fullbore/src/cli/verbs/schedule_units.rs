//! The units of a schedule: their texts, and the directory that they are in.

use super::systemd::{run_words, unit_text, unit_variable, unit_word};
use crate::cli::profile::NamedProfile;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform as platform;
use fullbore_repository::select::shell_word;
use std::{
    env,
    ffi::{OsStr, OsString},
    fmt::Write as _,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// The begin of the name of each unit.
pub(super) const PREFIX: &str = "fullbore-schedule-";

/// The comment in a service that has the command as it was typed.
const TYPED: &str = "# fullbore ";

/// How often a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Hourly,
    Daily,
    Weekly,
    Monthly,
}

impl When {
    /// The word on the command line and in OnCalendar=.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Hourly => "hourly",
            Self::Daily => "daily",
            Self::Weekly => "weekly",
            Self::Monthly => "monthly",
        }
    }

    /// The interval for `backup --every`.
    pub(super) fn interval(self) -> &'static str {
        match self {
            Self::Hourly => "1h",
            Self::Daily => "1d",
            Self::Weekly => "7d",
            Self::Monthly => "31d",
        }
    }

    /// Several hosts do not begin at once.
    fn random_delay(self) -> &'static str {
        match self {
            Self::Hourly => "5m",
            _ => "20m",
        }
    }
}

/// A command of this program that a timer runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScheduledCommand {
    /// The end of the names of its units.
    pub(super) name: String,
    /// The command as it was typed, for people.
    pub(super) typed: String,
    /// The directory that its relative paths begin in.
    dir: PathBuf,
    /// All words, with the path of this program.
    words: Vec<OsString>,
}

impl ScheduledCommand {
    /// Returns the backup of these words, with `own` ones before them.
    ///
    /// # Errors
    /// The system's; [`ErrorKind::Usage`] for words that no unit can have.
    pub(super) fn of_backup(
        dir: &Path,
        own: Vec<OsString>,
        words: &[OsString],
        sources: &[PathBuf],
    ) -> Result<Self> {
        let typed = [OsString::from("backup")]
            .into_iter()
            .chain(words.iter().cloned());
        let typed: Vec<String> = typed.map(|word| shell_word(&word)).collect();
        let typed = typed.join(" ");
        let mut all = vec![program()?, "backup".into()];
        all.extend(own);
        all.extend(words.iter().cloned());
        let first = sources.first().map(|path| dir.join(path));
        let first = first.as_deref().and_then(Path::file_name);
        let command = Self {
            name: unit_name(first.unwrap_or(OsStr::new("backup")), dir, words),
            typed,
            dir: dir.to_owned(),
            words: all,
        };
        command.service("").map(|_| command)
    }

    /// Returns the run of a profile.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn of_profile(profile: &NamedProfile) -> Result<Self> {
        let words = run_words(profile)?;
        let dir = PathBuf::from("/");
        let mut all = vec![program()?];
        all.extend(words.iter().cloned());
        let typed: Vec<String> = words.iter().map(|word| shell_word(word)).collect();
        Ok(Self {
            name: unit_name(OsStr::new(&profile.name), &dir, &words),
            typed: typed.join(" "),
            dir,
            words: all,
        })
    }

    /// Returns the service; `environment` has further lines.
    fn service(&self, environment: &str) -> Result<String> {
        let words: Result<Vec<String>> = { self.words.iter() }
            .map(|word| match word.is_empty() {
                true => Ok("\"\"".to_owned()),
                false => unit_word(Path::new(word)),
            })
            .collect();
        let dir = unit_text(&self.dir)?;
        Ok(format!(
            "{TYPED}{}\n[Unit]\nDescription=Backup that `fullbore schedule` repeats\nDocumentation=man:fullbore-schedule(1)\n\n\
             [Service]\nType=oneshot\nWorkingDirectory={dir}\nExecStart={}\n{environment}Nice=10\nIOSchedulingClass=idle\nUMask=0077\n",
            self.typed,
            words?.join(" ")
        ))
    }

    fn timer(&self, when: When) -> String {
        format!(
            "[Unit]\nDescription=Timer of a backup that `fullbore schedule` repeats\n\n[Timer]\nOnCalendar={}\n\
             RandomizedDelaySec={}\nPersistent=yes\n\n[Install]\nWantedBy=timers.target\n",
            when.word(),
            when.random_delay()
        )
    }

    /// Returns the lines of a crontab: one at noon, when more hosts are on than at midnight, and one for each start, as cron does not
    /// make up for what was missed.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for words that it cannot have.
    pub(super) fn crontab_lines(&self, when: When) -> Result<Vec<String>> {
        let words: Vec<String> = self.words.iter().map(|word| shell_word(word)).collect();
        let dir = shell_word(self.dir.as_os_str());
        // Only bash, which cron does not take, reads these quotes.
        if words
            .iter()
            .chain([&dir])
            .any(|word| word.starts_with("$'"))
        {
            return Err(Error::new(
                ErrorKind::Usage,
                "cannot schedule a command with a line break, or with names that are no text",
            ));
        }
        let times: &[&str] = match when {
            When::Hourly => &["@hourly"],
            When::Daily => &["0 12 * * *", "@reboot sleep 300;"],
            When::Weekly => &["0 12 * * 1", "@reboot sleep 300;"],
            When::Monthly => &["0 12 1 * *", "@reboot sleep 300;"],
        };
        let lines = times
            .iter()
            .map(|time| format!("{time} cd {dir} && {}", words.join(" ")));
        // In a crontab, % is the end of the command.
        Ok(lines.map(|line| line.replace('%', "\\%")).collect())
    }
}

fn program() -> Result<OsString> {
    let program = env::current_exe();
    let failed = |e| Error::io("could not find the path of this program", e);
    program.map(PathBuf::into_os_string).map_err(failed)
}

/// Returns a name that is the same for the same command, whatever its timer.
fn unit_name(first: &OsStr, dir: &Path, words: &[OsString]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(dir.as_os_str().as_bytes());
    for word in words {
        hasher.update(b"\0").update(word.as_bytes());
    }
    let digest = hasher.finalize().to_hex();
    let is_plain = |c: &char| c.is_ascii_alphanumeric();
    let first: String = first
        .to_string_lossy()
        .chars()
        .filter(is_plain)
        .take(16)
        .collect();
    let first = if first.is_empty() { "backup" } else { &first };
    format!("{first}-{}", &digest[..6])
}

/// A schedule that was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FoundSchedule {
    pub(super) name: String,
    pub(super) when: String,
    /// The command as it was typed.
    pub(super) command: String,
}

/// The directory of the units of a user, or of the system for root.
#[derive(Debug)]
pub(super) struct UnitDirectory {
    dir: PathBuf,
    is_of_user: bool,
}

impl UnitDirectory {
    /// Returns that of the user of this process; for root that of the system, unless it `is_of_user`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a user without a home directory.
    pub(super) fn of_process(is_of_user: bool) -> Result<Self> {
        let variable = |name: &str| {
            let value = env::var_os(name).map(PathBuf::from);
            value.filter(|path| path.is_absolute())
        };
        if platform::user().0 == 0 && !is_of_user {
            return Ok(Self {
                dir: PathBuf::from("/etc/systemd/system"),
                is_of_user: false,
            });
        }
        let base = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
        let base = base.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                "could not find the home directory: HOME is not set",
            )
        })?;
        Ok(Self {
            dir: base.join("systemd/user"),
            is_of_user: true,
        })
    }

    pub(super) fn is_of_user(&self) -> bool {
        self.is_of_user
    }

    /// Returns the command that prints the runs of a schedule.
    pub(super) fn journal(&self, name: &str) -> String {
        let user = if self.is_of_user { " --user" } else { "" };
        format!("journalctl{user} -u {PREFIX}{name}")
    }

    /// Returns whether systemd runs here for this user.
    pub(super) fn has_systemd(&self) -> bool {
        let asked = self.systemctl(&["is-system-running"]);
        // It fails, too, if any unit has failed.
        let state = asked.map(|output| output.stdout).unwrap_or_default();
        let state = String::from_utf8_lossy(&state);
        [
            "running",
            "degraded",
            "starting",
            "initializing",
            "maintenance",
        ]
        .contains(&state.trim())
    }

    fn systemctl(&self, words: &[&str]) -> io::Result<Output> {
        let mut command = Command::new("systemctl");
        command.args(self.is_of_user.then_some("--user"));
        command.args(words).stdin(Stdio::null()).output()
    }

    /// As [`UnitDirectory::systemctl`]; a failure is an error.
    fn told(&self, words: &[&str]) -> Result<()> {
        let line = words.join(" ");
        let failed = |e| Error::io(format!("could not run `systemctl {line}`"), e);
        let output = self.systemctl(words).map_err(failed)?;
        if output.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why.lines().next().unwrap_or("it says nothing").to_owned();
        let message = format!("could not schedule: `systemctl {line}` failed");
        Err(Error::new(ErrorKind::System, message).because(why))
    }

    fn unit(&self, name: &str, kind: &str) -> PathBuf {
        self.dir.join(format!("{PREFIX}{name}.{kind}"))
    }

    /// Writes the units of a command, and starts its timer. If that fails, what was scheduled before goes on.
    ///
    /// # Errors
    /// The system's, and those of systemd.
    pub(super) fn write(&self, command: &ScheduledCommand, when: When) -> Result<()> {
        let service = command.service(&self.environment()?)?;
        let failed = |e| Error::io(format!("could not write units into {:?}", self.dir), e);
        fs::create_dir_all(&self.dir).map_err(failed)?;
        let before = ["service", "timer"].map(|kind| {
            let file = self.unit(&command.name, kind);
            fs::read(&file).ok().map(|text| (file, text))
        });
        fs::write(self.unit(&command.name, "service"), service).map_err(failed)?;
        fs::write(self.unit(&command.name, "timer"), command.timer(when)).map_err(failed)?;
        let timer = format!("{PREFIX}{}.timer", command.name);
        let started = self.told(&["daemon-reload"]);
        // `enable --now` of a timer that runs keeps its old time.
        let started = started
            .and_then(|()| self.told(&["enable", &timer]))
            .and_then(|()| self.told(&["restart", &timer]));
        if started.is_err() {
            match before {
                [Some(service), Some(timer_before)] => {
                    for (file, text) in [service, timer_before] {
                        fs::write(file, text).map_err(failed)?;
                    }
                    let _ = self.told(&["daemon-reload"]);
                    let _ = self.told(&["restart", &timer]);
                }
                _ => self.remove(&command.name)?,
            }
        }
        started
    }

    /// A service of the system knows no home directory, where keys and what is remembered are.
    fn environment(&self) -> Result<String> {
        let mut lines = String::new();
        for name in [
            "HOME",
            "XDG_CONFIG_HOME",
            "XDG_STATE_HOME",
            "XDG_CACHE_HOME",
            "FULLBORE_STATE_DIR",
        ] {
            let Some(value) = env::var_os(name).filter(|value| !value.is_empty()) else {
                continue;
            };
            let mut setting = OsString::from(format!("{name}="));
            setting.push(value);
            let _ = writeln!(lines, "Environment={}", unit_variable(Path::new(&setting))?);
        }
        Ok(lines)
    }

    /// Ends a schedule: stops its timer, and removes its units.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        // Without systemd no timer runs.
        let _ = self.systemctl(&["disable", "--now", &format!("{PREFIX}{name}.timer")]);
        for kind in ["timer", "service"] {
            let file = self.unit(name, kind);
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io(format!("could not remove {file:?}"), error));
                }
                _ => {}
            }
        }
        let _ = self.systemctl(&["daemon-reload"]);
        Ok(())
    }

    /// Returns the schedules in this directory, by name.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn schedules(&self) -> Result<Vec<FoundSchedule>> {
        let failed = |e| Error::io(format!("could not read {:?}", self.dir), e);
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let name = name.to_string_lossy();
            let name = name
                .strip_prefix(PREFIX)
                .and_then(|name| name.strip_suffix(".timer"));
            if let Some(name) = name {
                found.push(self.schedule(name));
            }
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    fn schedule(&self, name: &str) -> FoundSchedule {
        let timer = fs::read_to_string(self.unit(name, "timer")).unwrap_or_default();
        let service = fs::read_to_string(self.unit(name, "service")).unwrap_or_default();
        FoundSchedule {
            name: name.to_owned(),
            when: value(&timer, "OnCalendar=").to_owned(),
            command: value(&service, TYPED).to_owned(),
        }
    }
}

/// Returns the rest of the first line that begins so.
fn value<'a>(text: &'a str, begin: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.strip_prefix(begin));
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> ScheduledCommand {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let sources = [PathBuf::from(words[0].clone())];
        ScheduledCommand::of_backup(
            Path::new("/home/ana"),
            vec!["--no-create".into()],
            &words,
            &sources,
        )
        .unwrap()
    }

    #[test]
    fn words_reach_the_service_and_the_crontab_as_they_were_typed() {
        let command = command(&["my files", "--to", "/mnt/50%", "--exclude", "it's $x"]);
        let service = command.service("").unwrap();
        let words = r#" backup --no-create "my files" --to /mnt/50%% --exclude "it's $$x""#;
        assert!(service.contains(words), "{service}");
        assert!(
            service.contains("\nWorkingDirectory=/home/ana\n"),
            "{service}"
        );
        let lines = command.crontab_lines(When::Weekly).unwrap();
        let words = r" backup --no-create 'my files' --to /mnt/50\% --exclude 'it'\''s $x'";
        let times = ["0 12 * * 1 cd", "@reboot sleep 300; cd"];
        for (line, time) in lines.iter().zip(times) {
            let begin = format!("{time} /home/ana && /");
            assert!(line.starts_with(&begin) && line.ends_with(words), "{line}");
        }
        assert_eq!(lines.len(), times.len());
        assert_eq!(command.crontab_lines(When::Hourly).unwrap().len(), 1);
        assert!(command.name.starts_with("myfiles-"), "{}", command.name);
    }

    #[test]
    fn a_command_has_one_name_and_another_command_another_one() {
        let one = command(&["/home/ana", "--to", "/mnt/a"]);
        assert_eq!(one, command(&["/home/ana", "--to", "/mnt/a"]));
        assert_ne!(one.name, command(&["/home/ana", "--to", "/mnt/b"]).name);
        assert!(command(&["数据", "--to", "x"]).name.starts_with("backup-"));
    }
}
