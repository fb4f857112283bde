//! The rules of a cluster's restore, as the machinery of a restore asks them.

use super::{closing, new_forks, recovery_files, refusals};
use crate::restore::{
    request::Restore,
    rules::{ClosingNotes, EntryFate, EntryRules, WrittenParts},
};
use fullbore_format::{
    error::{Error, Result, quoted},
    root::ClusterInfo,
};
use fullbore_postgres::restore::{
    plan::{ClusterPlan, Fate},
    tablespaces,
};
use fullbore_tree::write::{layout::TargetLayout, tree::TargetTree};
use std::sync::Arc;

/// The rules of one restore of a cluster.
pub(super) struct ClusterRules {
    restore: Restore,
    cluster: ClusterInfo,
    plan: ClusterPlan,
    /// Whether the control file is restored, so that a server may start.
    is_whole: bool,
}

impl ClusterRules {
    pub(super) fn new(
        restore: &Restore,
        cluster: &ClusterInfo,
        plan: ClusterPlan,
        is_whole: bool,
    ) -> Self {
        Self {
            is_whole,
            restore: restore.clone(),
            cluster: cluster.clone(),
            plan,
        }
    }
}

impl EntryRules for ClusterRules {
    fn fate(&self, path: &[u8]) -> EntryFate {
        match self.plan.fate(path) {
            Fate::Restored => EntryFate::Restored,
            Fate::Emptied => EntryFate::Emptied,
            Fate::LeftOut => EntryFate::LeftOut,
        }
    }

    fn misplaced(&self, path: &[u8]) -> Option<String> {
        let is_misplaced = self.plan.is_outside_server_directories(path);
        is_misplaced.then(|| format!("unexpected file in tablespace: {}", quoted(path)))
    }

    fn restores_all(&self) -> bool {
        self.plan.restores_all_databases()
    }

    fn are_used_as_one(&self) -> bool {
        true
    }

    fn arrange(&self, layout: &mut TargetLayout) {
        layout.mounts = self.plan.mounts.clone();
        layout.hint = tablespaces::HINT;
        layout.last = self.plan.last.clone();
    }

    fn refuses_leftovers(&self) -> bool {
        self.is_whole && self.restore.into.overwrites()
    }

    fn leftover_error(&self, path: &[u8]) -> Option<Error> {
        refusals::leftover_error(&self.restore.to, &self.plan, path)
    }

    fn write_files(&self, parts: &WrittenParts<'_>) -> Result<()> {
        recovery_files::write_files(&self.plan, parts)?;
        recovery_files::write_archived_wal((&self.restore, &self.cluster), &self.plan, parts)
    }

    fn remove_files(&self, tree: &Arc<TargetTree>) -> Result<()> {
        new_forks::remove_forks(&self.restore.to, &self.plan, &self.cluster, tree)
    }

    fn finish(&self, tree: &TargetTree, is_complete: bool) -> Result<ClosingNotes> {
        let subject = (&self.restore, &self.cluster);
        closing::finish(subject, &self.plan, tree, is_complete)
    }
}
