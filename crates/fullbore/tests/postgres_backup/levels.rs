//! Levels of a cluster in volumes.

use super::{
    args,
    cluster::{Cluster, some_versions},
    runs::fullbore,
};
use std::path::Path;

#[test]
fn each_level_of_a_cluster_in_volumes_is_restored_and_starts() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let volumes = cluster.path("v");
        let location = format!("volumes:{}", volumes.display());
        let backup = |level: &str| {
            let line = args![
                "backup",
                cluster.url(),
                "--to",
                location,
                "--volume-size",
                "8M",
                "--level",
                level,
                "--catalog",
                cluster.path("catalog"),
                "--quiet"
            ];
            fullbore(line).ends_with(0);
        };
        let word = "SELECT word FROM small WHERE n = 7";
        let mut words = Vec::new();
        for level in ["0", "1", "2"] {
            cluster.psql(&format!(
                "UPDATE small SET word = 'level {level}' WHERE n = 7"
            ));
            words.push(cluster.psql(word));
            backup(level);
        }
        // A level 1 after the level 2 refers to the level 0 alone.
        cluster.psql("UPDATE small SET word = 'again 1' WHERE n = 7");
        words.push(cluster.psql(word));
        backup("1");
        for (number, expected) in words.iter().rev().enumerate() {
            let from = format!("{location}@latest~{number}");
            let none = cluster.path("none").display().to_string();
            let restored = Cluster::restored_with(version, Path::new(&from), &["--catalog", &none]);
            restored.assert_verifies();
            restored.start();
            restored.assert_has_content();
            assert_eq!(&restored.psql(word), expected, "latest~{number}");
        }
    }
}
