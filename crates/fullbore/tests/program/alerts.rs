//! The rules for alerts in the documentation, judged by Prometheus itself where its `promtool` is there.

use crate::runs::{self, fullbore, has, or_skip, shell, temp};
use std::{collections::BTreeSet, fs};

const OPERATIONS: &str = include_str!("../../../../doc/operations.md");

/// A backup at the time 0, a run that fails from 26:40 on, and a host that is down from 28:20 on; then a host of which nothing is known;
/// then an archive of WAL that lags from 1:40 on, has a gap from 2:30 on, and is not looked at any more.
const CASES: &str = r#"rule_files: [rules.yml]
evaluation_interval: 1m
tests:
- interval: 1m
  input_series:
  - {series: 'fullbore_newest_backup_timestamp_seconds{instance="web1"}', values: 0x3000}
  - {series: 'fullbore_last_run_exit_code{instance="web1"}', values: 0x1599 1x1400}
  - {series: 'up{job="node",instance="web1"}', values: 1x1699 0x1300}
  alert_rule_test:
  - {eval_time: 26h, alertname: BackupOld, exp_alerts: []}
  - {eval_time: 27h, alertname: BackupOld, exp_alerts: [{exp_labels: {instance: web1}}]}
  - {eval_time: 26h, alertname: BackupFailed, exp_alerts: []}
  - {eval_time: 27h, alertname: BackupFailed, exp_alerts: [{exp_labels: {instance: web1}}]}
  - {eval_time: 27h, alertname: BackupUnknown, exp_alerts: []}
  - {eval_time: 29h, alertname: BackupUnknown, exp_alerts: [{exp_labels: {instance: web1, job: node}}]}
- interval: 1m
  alert_rule_test:
  - {eval_time: 1m, alertname: BackupUnknown, exp_alerts: [{exp_labels: {}}]}
- interval: 1m
  input_series:
  - {series: 'fullbore_wal_lag_seconds{profile="wal",system="7"}', values: 0x99 900x300}
  - {series: 'fullbore_wal_gaps{profile="wal",system="7"}', values: 0x149 1x250}
  - {series: 'fullbore_last_run_timestamp_seconds{profile="wal"}', values: 0x400}
  alert_rule_test:
  - {eval_time: 99m, alertname: WalLag, exp_alerts: []}
  - {eval_time: 2h, alertname: WalLag, exp_alerts: [{exp_labels: {profile: wal, system: "7"}}]}
  - {eval_time: 2h, alertname: WalGap, exp_alerts: []}
  - {eval_time: 3h, alertname: WalGap, exp_alerts: [{exp_labels: {profile: wal, system: "7"}}]}
  - {eval_time: 20m, alertname: WalUnknown, exp_alerts: []}
  - {eval_time: 40m, alertname: WalUnknown, exp_alerts: [{exp_labels: {profile: wal}}]}
  - {eval_time: 1h, alertname: DrillOld, exp_alerts: []}
"#;

/// The blocks of rules, that of backups first.
fn rules() -> Vec<&'static str> {
    let blocks = OPERATIONS.split("```yaml\n").skip(1);
    let of_alerts = blocks.filter(|block| block.starts_with("- alert:"));
    of_alerts
        .filter_map(|block| Some(block.split_once("```")?.0))
        .collect()
}

/// The names of series of ours in a text.
fn series(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("fullbore_")).collect()
}

#[test]
fn rules_for_alerts_name_series_that_a_backup_writes() {
    let dir = temp();
    let (tree, metrics) = (dir.path().join("tree"), dir.path().join("web.prom"));
    runs::write(tree.join("f"), "f");
    let repository = dir.path().join("repository");
    fullbore(args![
        "backup",
        tree,
        "--to",
        repository,
        "--metrics",
        metrics
    ])
    .ends_with(0);
    let written = fs::read_to_string(metrics).unwrap();
    let (named, written) = (series(rules()[0]), series(&written));
    assert_eq!(named.len(), 2, "{named:?}");
    assert!(named.is_subset(&written), "{named:?} {written:?}");
}

#[test]
fn rules_for_alerts_fire_when_they_should() {
    if !or_skip(has("promtool"), "there is no promtool") {
        return;
    }
    let dir = temp();
    let rules = rules().concat();
    let rules = rules.lines().map(|line| format!("  {line}\n"));
    let group = format!(
        "groups:\n- name: fullbore\n  rules:\n{}",
        rules.collect::<String>()
    );
    fs::write(dir.path().join("rules.yml"), group).unwrap();
    fs::write(dir.path().join("cases.yml"), CASES).unwrap();
    let judged = "cd \"$1\" && promtool check rules rules.yml && promtool test rules cases.yml";
    shell(judged, args![dir.path()]).ends_with(0);
}
