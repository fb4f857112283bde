//! Arguments for the restore of a PostgreSQL cluster.

use crate::cli::values::{RECOVERIES, TARGET_ACTIONS, one_of};
use clap::{Args, ValueHint, builder::TypedValueParser};
use fullbore_postgres::restore::{
    plan::ClusterOptions,
    recovery::{self, Mode, TargetAction},
    recovery_target::RecoveryTarget,
};
use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
};

/// What only a backup of a cluster knows.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "PostgreSQL")]
pub(in crate::cli) struct ClusterArgs {
    /// Restore a tablespace elsewhere (repeatable)
    ///
    /// OLD is the location, the name or the oid of the tablespace.
    #[arg(long, value_name = "OLD=NEW", value_parser = clap::builder::OsStringValueParser::new().try_map(moved), hide_short_help = true)]
    tablespace: Vec<(Vec<u8>, PathBuf)>,
    /// Restore all other tablespaces into this directory
    ///
    /// Each is restored below its name, or below its oid if the backup was made with --offline.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, hide_short_help = true)]
    tablespaces_under: Option<PathBuf>,
    /// Put the WAL into this directory, and link pg_wal to it
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, hide_short_help = true)]
    waldir: Option<PathBuf>,
    /// Restore only this database, postgres and the templates (repeatable)
    ///
    /// The other databases have to be dropped after the start.
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    database: Vec<String>,
    /// How the server recovers: none, point or standby
    ///
    /// none recovers to the end of the WAL in the backup. point recovers to a target, or to the end
    /// of the archive. standby recovers endlessly. The default is point if a target, a timeline or
    /// --restore-command is given, and none otherwise.
    #[arg(long, value_parser = one_of(&RECOVERIES), value_name = "HOW", hide_possible_values = true, hide_short_help = true)]
    recovery: Option<Mode>,
    #[command(flatten)]
    target: TargetArgs,
    /// Recover on this timeline: current, latest or a number
    #[arg(long, value_name = "TIMELINE", hide_short_help = true)]
    target_timeline: Option<String>,
    /// Stop right before the target
    #[arg(long, hide_short_help = true)]
    target_exclusive: bool,
    /// At the target: pause, promote or shutdown
    #[arg(long, value_parser = one_of(&TARGET_ACTIONS), value_name = "ACTION", hide_possible_values = true, hide_short_help = true)]
    target_action: Option<TargetAction>,
    /// The command with which the server fetches WAL
    ///
    /// The default is that of the configuration in the backup. Without a target, the server
    /// recovers to the end of the archive.
    #[arg(long, value_name = "CMD", hide_short_help = true)]
    restore_command: Option<String>,
    /// If WAL is missing, recover to the last point before it
    ///
    /// Without this option such a restore is refused before anything is written.
    #[arg(long)]
    latest_possible: bool,
    /// Use the WAL of this host, where two hosts archived different WAL
    ///
    /// After a failover two servers may have written one timeline.
    #[arg(long, value_name = "HOST")]
    wal_from: Option<String>,
    /// Add this setting to postgresql.auto.conf (repeatable)
    ///
    /// The value is given as it is, without quotes around it.
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting, hide_short_help = true)]
    set: Vec<(String, String)>,
}

/// Where recovery ends: one of these.
#[derive(Debug, Clone, Args)]
#[group(id = "recovery_target", multiple = false)]
#[command(next_help_heading = "PostgreSQL")]
pub(super) struct TargetArgs {
    /// Recover to this time, such as "2026-11-21 05:45:01+00"
    ///
    /// Give the offset from UTC. Unless a backup is named, the last one that ended before this time
    /// is restored.
    #[arg(long, value_name = "TIME")]
    target_time: Option<String>,
    /// Recover to this WAL location
    ///
    /// Unless a backup is named, the last one that ended before this location is restored.
    #[arg(long, value_name = "LSN")]
    target_lsn: Option<String>,
    /// Recover to this restore point
    #[arg(long, value_name = "NAME")]
    target_name: Option<String>,
    /// Recover to this transaction
    #[arg(long, value_name = "XID")]
    target_xid: Option<String>,
    /// Stop as soon as the cluster is consistent
    #[arg(long)]
    target_immediate: bool,
}

impl ClusterArgs {
    /// Returns what these arguments ask for.
    pub(in crate::cli) fn options(self) -> ClusterOptions {
        let recovery = recovery::RecoveryOptions {
            mode: self.recovery,
            target: self.target.target(),
            timeline: self.target_timeline,
            exclusive: self.target_exclusive,
            action: self.target_action,
            restore_command: self.restore_command,
            latest_possible: self.latest_possible,
            wal_from: self.wal_from,
            settings: self.set,
        };
        ClusterOptions {
            tablespaces: self.tablespace,
            tablespaces_under: self.tablespaces_under,
            waldir: self.waldir,
            databases: self.database,
            recovery,
        }
    }
}

impl TargetArgs {
    /// Returns the target, if one was given.
    pub(super) fn target(self) -> Option<RecoveryTarget> {
        let immediate = self.target_immediate.then_some(RecoveryTarget::Immediate);
        let named = self
            .target_name
            .map(RecoveryTarget::Name)
            .or(self.target_xid.map(RecoveryTarget::Xid));
        self.target_time
            .map(RecoveryTarget::Time)
            .or(self.target_lsn.map(RecoveryTarget::Lsn))
            .or(named)
            .or(immediate)
    }
}

fn moved(text: OsString) -> Result<(Vec<u8>, PathBuf), String> {
    let bytes = text.as_bytes();
    let position = bytes
        .iter()
        .position(|c| *c == b'=')
        .filter(|index| *index > 0)
        .ok_or("use OLD=NEW")?;
    Ok((
        bytes[..position].to_vec(),
        OsString::from_vec(bytes[position + 1..].to_vec()).into(),
    ))
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or("use NAME=VALUE; REPO@BACKUP chooses the backup")?;
    if let Some(inner) = quoted(value) {
        return Err(format!(
            "the quotes would become part of the value: use {}={inner}",
            name.trim()
        ));
    }
    Ok((name.trim().to_owned(), value.to_owned()))
}

/// Removes the quotes around a value, as in a configuration file. `'a b' 'c'` is a command and keeps its quotes.
fn quoted(value: &str) -> Option<&str> {
    let inner = value.trim().strip_prefix('\'')?.strip_suffix('\'')?;
    let is_one = !inner.replace("''", "").replace("\\'", "").contains('\'');
    is_one.then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_in_quotes_is_refused_and_one_with_quotes_in_it_is_not() {
        assert_eq!(
            setting("archive_command='cp %p /a/%f'")
                .unwrap_err()
                .split_once(": ")
                .unwrap()
                .1,
            "use archive_command=cp %p /a/%f"
        );
        for quoted in ["a=''", "a= 'b' ", "a='it''s'", "a='it\\'s'"] {
            assert!(setting(quoted).is_err(), "{quoted}");
        }
        for plain in ["a=", "a='", "a=it's", "a='/a b/cp' '%p'", "a='x' y"] {
            assert!(setting(plain).is_ok(), "{plain}");
        }
    }
}
