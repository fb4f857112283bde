//! The rules of a cluster's restore, as the machinery of a restore asks them.

use super::{closing, new_forks, refusals, write_archived_wal, write_files};
use crate::restore::{
    Restore,
    plan::RestorePlan,
    rules::{ClosingNotes, EntryFate, EntryRules},
    run::RestoreRun,
};
use fullbore_format::{
    error::{Result, quoted},
    root::ClusterInfo,
};
use fullbore_postgres::restore::{
    plan::{ClusterPlan, Fate},
    tablespaces,
};
use fullbore_tree::write::layout::TargetLayout;

/// The rules of one restore of a cluster.
pub(super) struct ClusterRules {
    restore: Restore,
    cluster: ClusterInfo,
    plan: ClusterPlan,
}

impl ClusterRules {
    pub(super) fn new(restore: &Restore, cluster: &ClusterInfo, plan: ClusterPlan) -> Self {
        Self {
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

    fn refuse_leftovers(&self, plan: &RestorePlan) -> Result<()> {
        refusals::refuse_leftovers(&self.restore, plan, &self.plan)
    }

    fn write_files(&self, run: &RestoreRun<'_>) -> Result<()> {
        write_files(&self.plan, &run.archive, &run.tree, &run.report)?;
        let subject = (&self.restore, &self.cluster);
        write_archived_wal(subject, &self.plan, &run.archive, &run.tree)
    }

    fn remove_files(&self, run: &RestoreRun<'_>) -> Result<()> {
        new_forks::remove_forks(&self.restore.to, &self.plan, &self.cluster, &run.tree)
    }

    fn finish(&self, run: &RestoreRun<'_>, is_complete: bool) -> Result<ClosingNotes> {
        let subject = (&self.restore, &self.cluster);
        closing::finish(subject, &self.plan, &run.tree, is_complete)
    }
}
