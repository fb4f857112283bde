//! Plans the recovery of a restored server: settings, a signal file, notes. Refuses options that
//! cannot work.

#[cfg(test)]
mod tests;

use super::{
    advice,
    recovery_target::{self, RecoveryTarget},
};
use crate::timeline::TimelineFork;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::ClusterInfo,
};
use jiff::Timestamp;

/// Signal file: recover from the archive, then open.
pub const RECOVERY_SIGNAL: &[u8] = b"recovery.signal";
/// Signal file: follow a primary.
pub const STANDBY_SIGNAL: &[u8] = b"standby.signal";
const RESTORE_COMMAND: &str = "restore_command";
const TARGET_TIME: &str = "recovery_target_time";

/// Settings that name the end of recovery.
const TARGETS: [&str; 5] = [
    "recovery_target",
    "recovery_target_lsn",
    "recovery_target_name",
    TARGET_TIME,
    "recovery_target_xid",
];

/// Defaults written before all other settings, unless the operator sets them.
///
/// A target left in a configuration file that the restore does not write would apply to this
/// recovery (rule 32). The server ignores an empty target only if no other target comes before it,
/// so these come first.
const TARGET_DEFAULTS: [(&str, &str); 8] = [
    ("recovery_target", ""),
    ("recovery_target_lsn", ""),
    ("recovery_target_name", ""),
    (TARGET_TIME, ""),
    ("recovery_target_xid", ""),
    ("recovery_target_action", "pause"),
    ("recovery_target_inclusive", "true"),
    ("recovery_target_timeline", "latest"),
];
/// Further defaults for a recovery to a point. Settings meant for a standby do not apply to it: to
/// delay, or to remove replayed WAL from the archive.
const POINT_DEFAULTS: [(&str, &str); 3] = [
    ("recovery_min_apply_delay", "0"),
    ("archive_cleanup_command", ""),
    ("recovery_end_command", ""),
];

/// Kind of recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// To the end of the WAL in the backup.
    None,
    /// To a target, or to the end of the archive.
    Point,
    /// Endless, as a standby.
    Standby,
}

/// The server's action at its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetAction {
    /// Wait, so that the operator can check.
    Pause,
    /// Open for writing.
    Promote,
    /// Shut down.
    Shutdown,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryOptions {
    /// Kind of recovery; `None` if not given.
    pub mode: Option<Mode>,
    pub target: Option<RecoveryTarget>,
    /// `current`, `latest` or the number of a timeline.
    pub timeline: Option<String>,
    /// True to end right before the target, not after it.
    pub exclusive: bool,
    pub action: Option<TargetAction>,
    /// Command with which the server fetches WAL from the archive.
    pub restore_command: Option<String>,
    /// True to end before WAL that is missing, instead of refusing.
    pub latest_possible: bool,
    /// Of segments that two hosts archived with different content, that of this host is used.
    pub wal_from: Option<String>,
    pub settings: Vec<(String, String)>,
}

/// Facts about a backup, beside its cluster.
#[derive(Debug, Clone, Copy, Default)]
pub struct RecoveryFacts<'a> {
    /// Time when the capture ended, as RFC 3339.
    pub stopped: &'a str,
    /// True if all of the server's configuration is in the backup.
    pub is_all: bool,
    /// True if the configuration is known to set `restore_command`.
    pub restore_command: bool,
    /// True if the configuration is known to set `primary_conninfo`.
    pub primary: bool,
    /// True if the configuration turns archiving on.
    pub archives: bool,
    /// The current time; `None` if it does not matter.
    pub now: Option<Timestamp>,
    /// Set if the backup cannot reach the wanted timeline.
    pub fork: Option<&'a TimelineFork>,
}

/// Recovery files to write for the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Settings for `postgresql.auto.conf`.
    pub settings: Vec<(String, String)>,
    pub signal: Option<&'static [u8]>,
}

impl Recovery {
    /// Returns whether `postgresql.auto.conf` is written. With a signal file it must be, as targets
    /// of an earlier recovery would apply.
    pub fn changes_settings(&self) -> bool {
        self.signal.is_some() || !self.settings.is_empty()
    }

    /// Returns the names of the settings to reset once the server is open.
    ///
    /// They are in `postgresql.auto.conf`, which a standby made from the server later gets too.
    /// With a target, that standby leaves its primary there and opens (observed with 13, 15 and
    /// 18).
    pub(crate) fn temporary_settings(&self) -> impl Iterator<Item = &str> {
        let is_for_a_point = self.signal == Some(RECOVERY_SIGNAL);
        let settings = self.settings.iter().filter(move |_| is_for_a_point);
        settings
            .filter(move |(name, value)| is_temporary(name, value))
            .map(|(name, _)| name.as_str())
    }
}

fn is_temporary(name: &str, value: &str) -> bool {
    match name {
        "recovery_target_timeline" => value != "latest",
        RESTORE_COMMAND => value == "false",
        _ => TARGETS.contains(&name) && !value.is_empty(),
    }
}

impl RecoveryOptions {
    /// Returns the kind of recovery, given or implied by other options.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the options contradict each other.
    pub fn kind(&self) -> Result<Mode> {
        recovery_mode(self)
    }

    /// Returns whether the server pauses at its target.
    pub(crate) fn pauses_at_target(&self) -> bool {
        self.target.is_some() && matches!(self.action, None | Some(TargetAction::Pause))
    }

    /// Returns whether the server may pause in the middle of a transaction that later WAL
    /// continues.
    pub(crate) fn may_pause_mid_transaction(&self) -> bool {
        self.pauses_at_target() && self.target != Some(RecoveryTarget::Immediate)
    }

    /// Returns whether recovery ends with the WAL of the backup, as far as is known.
    pub(crate) fn ends_with_the_backup(&self) -> bool {
        let is_near = matches!(self.target, None | Some(RecoveryTarget::Immediate));
        is_near && matches!(self.timeline.as_deref(), None | Some("current"))
    }

    /// Returns whether the options are known to need a backup that not every backup satisfies.
    pub fn needs_specific_backup(&self) -> bool {
        self.timeline.is_some()
            || matches!(
                self.target,
                Some(RecoveryTarget::Time(_) | RecoveryTarget::Lsn(_))
            )
    }

    /// Returns whether the choice of the backup matters.
    pub fn selects_backup(&self) -> bool {
        self.needs_specific_backup() || self.follows_timelines()
    }

    /// Returns whether the server replays WAL towards a timeline other than the backup's own. From
    /// a backup that cannot reach that timeline, it does not even start.
    pub fn follows_timelines(&self) -> bool {
        let is_own = match &self.timeline {
            Some(timeline) => timeline == "current",
            None => self.target == Some(RecoveryTarget::Immediate),
        };
        !is_own && matches!(recovery_mode(self), Ok(Mode::Point | Mode::Standby))
    }

    /// Returns whether recovery can begin with a backup that stopped at `stopped`, as far as is
    /// known.
    pub fn can_begin_with(&self, cluster: &ClusterInfo, stopped: &str) -> bool {
        target_timeline(self, cluster).is_ok()
            && match &self.target {
                Some(RecoveryTarget::Time(text)) => {
                    recovery_target::checked_time(text, stopped).is_ok()
                }
                Some(RecoveryTarget::Lsn(text)) => {
                    recovery_target::checked_lsn(text, cluster).is_ok()
                }
                _ => true,
            }
    }

    /// Checks that a backup that stopped at `stopped` was complete before the target.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if it was not, or the target cannot be read.
    pub fn check_target(&self, cluster: &ClusterInfo, stopped: &str) -> Result<()> {
        let known = RecoveryFacts {
            stopped,
            ..RecoveryFacts::default()
        };
        match recovery_mode(self)? {
            Mode::Point => target_settings(self, cluster, &known).map(drop),
            _ => Ok(()),
        }
    }

    /// Returns the timeline that recovery ends on, for a cluster with backups on the timelines
    /// `known`; `None` for the timeline of any backup.
    pub fn wanted_timeline(&self, known: impl Iterator<Item = u32>) -> Option<u32> {
        match self.timeline.as_deref() {
            None | Some("latest") => known.max(),
            Some(number) => number.parse().ok(),
        }
    }

    /// Returns whether the operator chose how the server recovers.
    pub(crate) fn is_chosen(&self) -> bool {
        self.mode.is_some()
            || self.target.is_some()
            || self.timeline.is_some()
            || self.restore_command.is_some()
    }
}

/// Returns the settings and the signal file, and notes on what will be missing.
pub(crate) fn plan(
    options: &RecoveryOptions,
    cluster: &ClusterInfo,
    known: &RecoveryFacts<'_>,
) -> Result<(Recovery, Vec<String>)> {
    let mode = recovery_mode(options)?;
    let settings = chosen_settings(mode, options, cluster, known)?;
    check_settings(&settings)?;
    let archive = is_set(&settings, RESTORE_COMMAND, known.restore_command);
    let primary = is_set(&settings, "primary_conninfo", known.primary);
    // Without WAL from the archive the server would stop at the end of the backup, not at the
    // point.
    if mode == Mode::Point && !archive {
        return Err(advice::no_restore_command(options, cluster));
    }
    let mut notes = Vec::new();
    notes.extend(advice::lacking_note(
        mode,
        cluster,
        archive || primary,
        known.is_all,
    ));
    notes.extend(advice::archiving_note(mode, options, known));
    if let Some(RecoveryTarget::Time(text)) = &options.target {
        notes.push(recovery_target::time_note(text, known.now)?);
    }
    if let Some(fork) = known.fork {
        notes.push(advice::fork_note(mode, options, cluster, fork));
    }
    let signal = match mode {
        Mode::None => None,
        Mode::Point => Some(RECOVERY_SIGNAL),
        Mode::Standby => Some(STANDBY_SIGNAL),
    };
    let settings = with_defaults(mode, settings);
    Ok((Recovery { settings, signal }, notes))
}

/// Returns the settings that follow from the options, in order; a later one overrides an earlier
/// one.
fn chosen_settings(
    mode: Mode,
    options: &RecoveryOptions,
    cluster: &ClusterInfo,
    known: &RecoveryFacts<'_>,
) -> Result<Vec<(String, String)>> {
    let mut settings = match mode {
        Mode::Point => target_settings(options, cluster, known)?,
        _ => Vec::new(),
    };
    let mut timeline = target_timeline(options, cluster)?;
    // From a backup that cannot reach the latest timeline, the server stays on its own.
    let stays = known.fork.is_some() && options.timeline.is_none() && mode == Mode::Point;
    if timeline.is_none() && stays {
        timeline = Some(cluster.timeline.to_string());
    }
    settings.extend(timeline.map(|timeline| setting("recovery_target_timeline", &timeline)));
    settings.extend(options.settings.iter().cloned());
    let command = options.restore_command.as_deref();
    settings.extend(command.map(|command| setting(RESTORE_COMMAND, command)));
    Ok(settings)
}

/// Returns whether the last value of `name` is not empty; without a value, `otherwise`.
fn is_set(settings: &[(String, String)], name: &str, otherwise: bool) -> bool {
    let mut last_first = settings.iter().rev();
    let last = last_first.find(|(set, _)| set.eq_ignore_ascii_case(name));
    last.map_or(otherwise, |(_, value)| !value.is_empty())
}

/// Puts the defaults that `settings` do not set before them.
fn with_defaults(mode: Mode, settings: Vec<(String, String)>) -> Vec<(String, String)> {
    let defaults: &[&[_]] = match mode {
        Mode::None => &[],
        Mode::Point => &[&TARGET_DEFAULTS, &POINT_DEFAULTS],
        Mode::Standby => &[&TARGET_DEFAULTS],
    };
    let mut all = Vec::new();
    for (name, value) in defaults.iter().copied().flatten() {
        if settings.iter().all(|(set, _)| set != name) {
            all.push(setting(name, value));
        }
    }
    all.extend(settings);
    all
}

/// Returns the kind of recovery, given or implied by other options.
fn recovery_mode(options: &RecoveryOptions) -> Result<Mode> {
    let aims = options.target.is_some() || options.exclusive || options.action.is_some();
    // A restore command without other options means recovery to the end of the archive.
    let fetches = options.restore_command.is_some();
    let implied = if aims || fetches || options.timeline.is_some() {
        Mode::Point
    } else {
        Mode::None
    };
    let mode = options.mode.unwrap_or(implied);
    let refused = match mode {
        Mode::None if aims || options.timeline.is_some() => {
            "a target or timeline needs --recovery point"
        }
        Mode::None if fetches => {
            "--restore-command needs --recovery point or standby; --set restore_command=CMD only \
                adds the setting"
        }
        _ if options
            .restore_command
            .as_deref()
            .is_some_and(|command| command.trim().is_empty()) =>
        {
            "--restore-command needs a command"
        }
        Mode::Standby if aims => {
            "a standby never ends its recovery: a target needs --recovery point"
        }
        _ if options.exclusive
            && matches!(
                options.target,
                None | Some(RecoveryTarget::Name(_) | RecoveryTarget::Immediate)
            ) =>
        {
            "--target-exclusive needs --target-time, --target-lsn or --target-xid"
        }
        _ if options.action.is_some() && options.target.is_none() => {
            "--target-action needs a target"
        }
        _ => return Ok(mode),
    };
    Err(Error::new(ErrorKind::Usage, refused))
}

fn setting(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn target_settings(
    options: &RecoveryOptions,
    cluster: &ClusterInfo,
    known: &RecoveryFacts<'_>,
) -> Result<Vec<(String, String)>> {
    let target = match &options.target {
        None => return Ok(Vec::new()),
        Some(RecoveryTarget::Time(text)) => setting(
            TARGET_TIME,
            &recovery_target::checked_time(text, known.stopped)?,
        ),
        Some(RecoveryTarget::Lsn(text)) => setting(
            "recovery_target_lsn",
            recovery_target::checked_lsn(text, cluster)?,
        ),
        Some(RecoveryTarget::Name(text)) => {
            setting("recovery_target_name", recovery_target::checked_name(text)?)
        }
        Some(RecoveryTarget::Xid(text)) => setting(
            "recovery_target_xid",
            &recovery_target::checked_xid(text)?.to_string(),
        ),
        Some(RecoveryTarget::Immediate) if !cluster.online => {
            let message = "cannot recover to immediate: the cluster was shut down for the backup, \
                and is already consistent";
            return Err(Error::new(ErrorKind::Usage, message).hint("leave out --target-immediate"));
        }
        Some(RecoveryTarget::Immediate) => setting("recovery_target", "immediate"),
    };
    let action = options.action.map(|action| match action {
        TargetAction::Pause => "pause",
        TargetAction::Promote => "promote",
        TargetAction::Shutdown => "shutdown",
    });
    // Only what differs from the server's default is written.
    let exclusive = options
        .exclusive
        .then(|| setting("recovery_target_inclusive", "false"));
    let action = action.map(|action| setting("recovery_target_action", action));
    Ok([target]
        .into_iter()
        .chain(exclusive)
        .chain(action)
        .collect())
}

/// Returns the timeline to follow.
///
/// The server's own default, `latest`, can lead to a timeline without the consistent state; so
/// `immediate` stays on the backup's timeline (rule 31).
fn target_timeline(options: &RecoveryOptions, cluster: &ClusterInfo) -> Result<Option<String>> {
    let Some(timeline) = &options.timeline else {
        return Ok(
            (options.target == Some(RecoveryTarget::Immediate)).then(|| "current".to_owned())
        );
    };
    let number: Option<u32> = timeline.parse().ok();
    match (timeline.as_str(), number) {
        ("current" | "latest", _) => {}
        (_, Some(number)) if number >= cluster.timeline => {}
        (_, Some(_)) => {
            let message = format!(
                "cannot recover on timeline {timeline}: the backup is on timeline {}",
                cluster.timeline
            );
            return Err(Error::new(ErrorKind::Usage, message).hint("choose an older backup"));
        }
        (_, None) => {
            let message = format!("cannot recover on timeline {timeline:?}");
            return Err(
                Error::new(ErrorKind::Usage, message).hint("use current, latest or a number")
            );
        }
    }
    // Without leading zeros: the server would read them as octal.
    Ok(Some(number.map_or_else(
        || timeline.clone(),
        |number| number.to_string(),
    )))
}

/// Checks that a configuration file can hold the names and values.
fn check_settings(settings: &[(String, String)]) -> Result<()> {
    for (name, value) in settings {
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_.$".contains(c));
        if !is_name {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("cannot set {name:?}: it is not the name of a setting"),
            ));
        }
        if value.contains(['\n', '\r', '\0']) {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("cannot set {name:?}: its value has more than one line"),
            ));
        }
    }
    Ok(())
}
