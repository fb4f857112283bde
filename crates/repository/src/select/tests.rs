use super::*;
use fullbore_format::root::EntryName;

fn source(host: &str, paths: &[&str]) -> SourceInfo {
    let paths = paths
        .iter()
        .map(|path| EntryName(path.as_bytes().to_vec()))
        .collect();
    SourceInfo {
        host: host.into(),
        paths,
        contents: false,
    }
}

fn ways(sources: &[SourceInfo], filter: &BackupFilter) -> Vec<String> {
    let mut all = SourceList::default();
    for (index, source) in sources.iter().enumerate() {
        all.add(&Root {
            id: format!("id{index}"),
            source: source.clone(),
            ..Root::default()
        });
    }
    all.0.iter().map(|kin| filter.way(kin, &all)).collect()
}

fn filter(words: &[&str]) -> BackupFilter {
    let words = words.iter().map(OsString::from).collect();
    BackupFilter {
        retry: RetryLine {
            words,
            has_options: true,
            from: Some(1),
        },
        ..BackupFilter::default()
    }
}

#[test]
fn each_source_gets_the_fewest_options_that_select_it_alone() {
    let [a, b] = [source("h", &["/a"]), source("h", &["/b c"])];
    assert_eq!(
        ways(&[a.clone(), b], &filter(&["x", "/r"])),
        ["x /r --path /a", "x /r --path '/b c'"]
    );
    let other = source("i", &["/a"]);
    assert_eq!(
        ways(&[a.clone(), other.clone()], &filter(&["x", "/r"])),
        ["x /r --host h", "x /r --host i"]
    );
    let third = source("i", &["/b"]);
    let all = ways(&[a, other, third], &filter(&["x", "/r", "--", "-p"]));
    assert_eq!(
        all,
        [
            "x /r --host h -- -p",
            "x /r --host i --path /a -- -p",
            "x /r --path /b -- -p"
        ]
    );
}

#[test]
fn a_source_that_no_option_selects_alone_is_named_by_an_id() {
    let sources = [source("h", &["/a"]), source("h", &["/a", "/b"])];
    assert_eq!(
        ways(&sources, &filter(&["x", "/r"])),
        ["x /r@id0", "x /r --path /a --path /b"]
    );
    assert_eq!(ways(&sources, &BackupFilter::default()), ["@id0", "@id1"]);
}

#[test]
fn words_come_out_of_a_shell_as_they_were() {
    let words: [&[u8]; 7] = [
        b"",
        b"a b",
        b"it's",
        b"$(x)",
        b"a\nb",
        b"\xff'",
        "ä *".as_bytes(),
    ];
    for word in words {
        let line = format!("printf %s {}", shell_word(OsStr::from_bytes(word)));
        let out = std::process::Command::new("bash")
            .args(["-c", &line])
            .output()
            .unwrap();
        assert_eq!(out.stdout, word, "{line}");
    }
}
