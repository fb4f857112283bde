//! How a restored server recovers: settings, a signal file, and what cannot work.

#[cfg(test)]
mod tests;

use super::{
    advice,
    recovery_target::{self, RecoveryTarget},
};
use crate::{
    error::{Error, ErrorKind, Result},
    format::root::ClusterInfo,
    postgres::timeline::TimelineFork,
};
use clap::ValueEnum;
use jiff::Timestamp;

/// The file that says: recover from the archive, then open.
pub const RECOVERY_SIGNAL: &[u8] = b"recovery.signal";
/// The file that says: follow a primary.
pub const STANDBY_SIGNAL: &[u8] = b"standby.signal";
const RESTORE_COMMAND: &str = "restore_command";
const TARGET_TIME: &str = "recovery_target_time";

/// Settings that say where recovery ends.
const TARGETS: [&str; 5] = [
    "recovery_target",
    "recovery_target_lsn",
    "recovery_target_name",
    TARGET_TIME,
    "recovery_target_xid",
];

/// What a target left in a configuration file that is not written anew, or lies elsewhere, would count as if it was meant for
/// this recovery (rule 32). The server takes an empty target for none only as long as there is no other: so these stand first.
const UNLESS_SAID: [(&str, &str); 8] = [
    ("recovery_target", ""),
    ("recovery_target_lsn", ""),
    ("recovery_target_name", ""),
    (TARGET_TIME, ""),
    ("recovery_target_xid", ""),
    ("recovery_target_action", "pause"),
    ("recovery_target_inclusive", "true"),
    ("recovery_target_timeline", "latest"),
];
/// Nor is it meant for a recovery to a point what a standby was told: to wait, or to remove from the archive what it has replayed.
const UNLESS_SAID_TO_A_POINT: [(&str, &str); 3] = [
    ("recovery_min_apply_delay", "0"),
    ("archive_cleanup_command", ""),
    ("recovery_end_command", ""),
];

/// How a server recovers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// To the end of the WAL that is in the backup.
    None,
    /// To a target, or to the end of the archive.
    Point,
    /// For ever, as a standby.
    Standby,
}

/// What a server does when it has reached its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TargetAction {
    /// Wait, so that one can look.
    Pause,
    /// Open.
    Promote,
    /// Stop.
    Shutdown,
}

/// What an operator may want of recovery.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryOptions {
    /// How; `None` if it was not said.
    pub mode: Option<Mode>,
    /// Where it ends.
    pub target: Option<RecoveryTarget>,
    /// `current`, `latest` or the number of a timeline.
    pub timeline: Option<String>,
    /// End right before the target, not right after it?
    pub exclusive: bool,
    /// And then.
    pub action: Option<TargetAction>,
    /// How the server fetches WAL from the archive.
    pub restore_command: Option<String>,
    /// More settings.
    pub settings: Vec<(String, String)>,
}

/// What is known of a backup besides its cluster.
#[derive(Debug, Clone, Copy, Default)]
pub struct RecoveryFacts<'a> {
    /// When all was captured, as RFC 3339.
    pub stopped: &'a str,
    /// Is all of the server's configuration in it?
    pub is_all: bool,
    /// Does its configuration set `restore_command`, as far as is known?
    pub restore_command: bool,
    /// And `primary_conninfo`?
    pub primary: bool,
    /// Does it have the server archive its WAL?
    pub archives: bool,
    /// What time it is; `None` if that does not matter.
    pub now: Option<Timestamp>,
    /// Is it not on the way to the timeline that is wanted?
    pub fork: Option<&'a TimelineFork>,
}

/// What is written for the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Settings for `postgresql.auto.conf`.
    pub settings: Vec<(String, String)>,
    /// The signal file.
    pub signal: Option<&'static [u8]>,
}

impl Recovery {
    /// Is `postgresql.auto.conf` written anew? Targets of an earlier recovery count as soon as there is a signal.
    pub fn changes_settings(&self) -> bool {
        self.signal.is_some() || !self.settings.is_empty()
    }

    /// Names of the settings that must go when the server is open. They are in `postgresql.auto.conf`, which a standby that is made from
    /// the server later gets too: with a target it leaves its primary there and opens (seen with 13, 15 and 18).
    pub(crate) fn passing(&self) -> impl Iterator<Item = &str> {
        let is_passing = |name: &str, value: &str| match name {
            "recovery_target_timeline" => value != "latest",
            RESTORE_COMMAND => value == "false",
            _ => TARGETS.contains(&name) && !value.is_empty(),
        };
        let is_for_a_point = self.signal == Some(RECOVERY_SIGNAL);
        let settings = self.settings.iter().filter(move |_| is_for_a_point);
        settings
            .filter(move |(name, value)| is_passing(name, value))
            .map(|(name, _)| name.as_str())
    }
}

impl RecoveryOptions {
    /// Will the server wait at the target for somebody who looks at it?
    pub(crate) fn stands_still(&self) -> bool {
        self.target.is_some() && matches!(self.action, None | Some(TargetAction::Pause))
    }

    /// May that be in the middle of a transaction that the WAL speaks of later?
    pub(crate) fn may_stand_before_a_drop(&self) -> bool {
        self.stands_still() && self.target != Some(RecoveryTarget::Immediate)
    }

    /// Does it end with the WAL of the backup, as far as is known?
    pub(crate) fn ends_with_the_backup(&self) -> bool {
        let is_near = matches!(self.target, None | Some(RecoveryTarget::Immediate));
        is_near && matches!(self.timeline.as_deref(), None | Some("current"))
    }

    /// Is there something that not every backup can lead to, as is known?
    pub fn is_choosy(&self) -> bool {
        self.timeline.is_some()
            || matches!(
                self.target,
                Some(RecoveryTarget::Time(_) | RecoveryTarget::Lsn(_))
            )
    }

    /// Is it not the same which backup it begins with?
    pub fn chooses(&self) -> bool {
        self.is_choosy() || self.follows_timelines()
    }

    /// Does the server replay WAL on the way to a timeline that is not just the backup's? From a backup beside that way it does not
    /// even start.
    pub fn follows_timelines(&self) -> bool {
        let is_own = match &self.timeline {
            Some(timeline) => timeline == "current",
            None => self.target == Some(RecoveryTarget::Immediate),
        };
        !is_own && matches!(mode(self), Ok(Mode::Point | Mode::Standby))
    }

    /// Can it begin with a backup that ended so, as far as that is known?
    pub fn can_begin_with(&self, cluster: &ClusterInfo, stopped: &str) -> bool {
        timeline(self, cluster).is_ok()
            && match &self.target {
                Some(RecoveryTarget::Time(text)) => recovery_target::time(text, stopped).is_ok(),
                Some(RecoveryTarget::Lsn(text)) => recovery_target::lsn(text, cluster).is_ok(),
                _ => true,
            }
    }

    /// The timeline that it ends on, of a cluster with backups on these; `None` if it is the one of any backup.
    pub fn wanted_timeline(&self, known: impl Iterator<Item = u32>) -> Option<u32> {
        match self.timeline.as_deref() {
            None | Some("latest") => known.max(),
            Some(number) => number.parse().ok(),
        }
    }

    /// Did the operator say how the server recovers?
    pub(crate) fn is_chosen(&self) -> bool {
        self.mode.is_some()
            || self.target.is_some()
            || self.timeline.is_some()
            || self.restore_command.is_some()
    }
}

/// Settings, signal file, and notes on what will be missing.
pub(crate) fn plan(
    options: &RecoveryOptions,
    cluster: &ClusterInfo,
    known: &RecoveryFacts<'_>,
) -> Result<(Recovery, Vec<String>)> {
    let mode = mode(options)?;
    let mut settings = match mode {
        Mode::Point => targets(options, cluster, known)?,
        _ => Vec::new(),
    };
    let stays = known.fork.is_some() && options.timeline.is_none() && mode == Mode::Point;
    let timeline =
        timeline(options, cluster)?.or_else(|| stays.then(|| cluster.timeline.to_string()));
    settings.extend(timeline.map(|timeline| setting("recovery_target_timeline", &timeline)));
    settings.extend(options.settings.iter().cloned());
    settings.extend(
        options
            .restore_command
            .as_deref()
            .map(|command| setting(RESTORE_COMMAND, command)),
    );
    check_settings(&settings)?;
    let has = |name: &str, has_otherwise: bool| {
        let said = settings
            .iter()
            .rev()
            .find(|(said, _)| said.eq_ignore_ascii_case(name));
        said.map_or(has_otherwise, |(_, value)| !value.is_empty())
    };
    let archive = has(RESTORE_COMMAND, known.restore_command);
    let primary = has("primary_conninfo", known.primary);
    if mode == Mode::Point && !archive {
        return Err(advice::nothing_fetches(options, cluster));
    }
    let missing = advice::missing(mode, cluster, archive || primary, known.is_all);
    let until = match &options.target {
        Some(RecoveryTarget::Time(text)) => Some(recovery_target::until(text, known.now)?),
        _ => None,
    };
    let beside = known
        .fork
        .map(|fork| advice::beside(mode, options, cluster, fork));
    let notes = { missing.into_iter() }
        .chain(advice::archiving(mode, options, known))
        .chain(until)
        .chain(beside)
        .collect();
    let signal = match mode {
        Mode::None => None,
        Mode::Point => Some(RECOVERY_SIGNAL),
        Mode::Standby => Some(STANDBY_SIGNAL),
    };
    let usual: &[&[_]] = match mode {
        Mode::None => &[],
        Mode::Point => &[&UNLESS_SAID, &UNLESS_SAID_TO_A_POINT],
        Mode::Standby => &[&UNLESS_SAID],
    };
    let unsaid = usual
        .iter()
        .copied()
        .flatten()
        .filter(|(name, _)| settings.iter().all(|(said, _)| said != name));
    let unsaid = unsaid.map(|(name, value)| setting(name, value));
    let settings = unsaid.chain(settings.iter().cloned()).collect();
    Ok((Recovery { settings, signal }, notes))
}

fn mode(options: &RecoveryOptions) -> Result<Mode> {
    let aims = options.target.is_some() || options.exclusive || options.action.is_some();
    // Who says where the WAL is wants all of it, if nothing else was said.
    let fetches = options.restore_command.is_some();
    let implied = if aims || fetches || options.timeline.is_some() {
        Mode::Point
    } else {
        Mode::None
    };
    let mode = options.mode.unwrap_or(implied);
    let refused = match mode {
        Mode::None if aims || options.timeline.is_some() => {
            "a target or timeline wants --recovery point"
        }
        Mode::None if fetches => {
            "--restore-command wants --recovery point or standby; --set restore_command=CMD only adds the setting"
        }
        _ if options
            .restore_command
            .as_deref()
            .is_some_and(|command| command.trim().is_empty()) =>
        {
            "--restore-command wants a command"
        }
        Mode::Standby if aims => "a standby goes on for ever: a target wants --recovery point",
        _ if options.exclusive
            && matches!(
                options.target,
                None | Some(RecoveryTarget::Name(_) | RecoveryTarget::Immediate)
            ) =>
        {
            "--target-exclusive wants --target-time, --target-lsn or --target-xid"
        }
        _ if options.action.is_some() && options.target.is_none() => {
            "--target-action wants a target"
        }
        _ => return Ok(mode),
    };
    Err(Error::new(ErrorKind::Usage, refused))
}

fn setting(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn targets(
    options: &RecoveryOptions,
    cluster: &ClusterInfo,
    known: &RecoveryFacts<'_>,
) -> Result<Vec<(String, String)>> {
    let target = match &options.target {
        None => return Ok(Vec::new()),
        Some(RecoveryTarget::Time(text)) => {
            setting(TARGET_TIME, &recovery_target::time(text, known.stopped)?)
        }
        Some(RecoveryTarget::Lsn(text)) => {
            setting("recovery_target_lsn", recovery_target::lsn(text, cluster)?)
        }
        Some(RecoveryTarget::Name(text)) => {
            setting("recovery_target_name", recovery_target::name(text)?)
        }
        Some(RecoveryTarget::Xid(text)) => setting(
            "recovery_target_xid",
            &recovery_target::xid(text)?.to_string(),
        ),
        Some(RecoveryTarget::Immediate) if !cluster.online => {
            let what = "cannot recover to immediate: the cluster was shut down for the backup, and is consistent as it is";
            return Err(Error::new(ErrorKind::Usage, what).hint("leave out --target-immediate"));
        }
        Some(RecoveryTarget::Immediate) => setting("recovery_target", "immediate"),
    };
    let action = options.action.map(|action| match action {
        TargetAction::Pause => "pause",
        TargetAction::Promote => "promote",
        TargetAction::Shutdown => "shutdown",
    });
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

/// The timeline to follow. The server's own default, `latest`, can lead to one that the consistent state is not on:
/// `immediate` stays where it is (rule 31).
fn timeline(options: &RecoveryOptions, cluster: &ClusterInfo) -> Result<Option<String>> {
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
            let what = format!(
                "cannot recover on timeline {timeline}: the backup is on timeline {}",
                cluster.timeline
            );
            return Err(Error::new(ErrorKind::Usage, what).hint("choose an older backup"));
        }
        (_, None) => {
            let what = format!("cannot recover on timeline {timeline:?}");
            return Err(Error::new(ErrorKind::Usage, what).hint("use current, latest or a number"));
        }
    }
    // The server would take one that begins with 0 for an octal one.
    Ok(Some(number.map_or_else(
        || timeline.clone(),
        |number| number.to_string(),
    )))
}

/// Names and values that a configuration file can hold.
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
                format!("cannot set {name:?}: its value is more than one line"),
            ));
        }
    }
    Ok(())
}
