//! An object store that is broken in every way that it can be: nothing half stored is seen, and nothing half read.

use super::{
    fault_proxy::{Break, FaultProxy},
    stores::{SECRET, s3_address, s3_endpoint, s3_environment, s3_server, settings},
    suite::{get, keys, pattern, put},
};
use fullbore_format::{digest::crc64, error::ErrorKind, root::PART_BYTES};
use fullbore_storage::{CloudAddress, CloudEnvironment, CloudObjects, Objects, Put, PutIf, probe};
use std::{fs, sync::Arc, time::Duration};

const MIB: usize = 1 << 20;

/// Objects of their own, behind a proxy and beside it.
struct Broken {
    proxy: FaultProxy,
    cloud: CloudObjects,
    objects: Arc<dyn Objects>,
    /// The same objects without the proxy.
    beside: Arc<dyn Objects>,
}

impl Broken {
    fn prefix(&self) -> String {
        let name = self.objects.describe("");
        let (_, prefix) = name.trim_matches('"').split_once("vault/").unwrap();
        prefix.to_owned()
    }
}

fn broken() -> Broken {
    broken_with(|_| {})
}

fn broken_with(change: impl Fn(&mut fullbore_storage::CloudSettings)) -> Broken {
    let proxy = FaultProxy::new(s3_server().port);
    let address = s3_address();
    let open = |endpoint: &str| {
        let mut settings = settings(endpoint);
        change(&mut settings);
        CloudObjects::open(&address, &settings, &s3_environment()).unwrap()
    };
    let cloud = open(&proxy.endpoint);
    Broken {
        objects: Arc::new(cloud.clone()),
        beside: Arc::new(open(&s3_endpoint())),
        proxy,
        cloud,
    }
}

fn upload(
    objects: &Arc<dyn Objects>,
    key: &str,
    bytes: &[u8],
) -> fullbore_format::error::Result<Vec<u64>> {
    let mut upload = objects.create(key)?;
    for piece in bytes.chunks(3 * MIB + 5) {
        upload.append(piece)?;
    }
    upload.finish().map(|stored| stored.parts)
}

fn part_digests(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(PART_BYTES as usize).map(crc64).collect()
}

#[test]
fn each_operation_makes_as_few_requests_as_it_can() {
    let store = broken();
    let objects = &store.objects;
    let requests = |word: &str, expected: u64, act: &dyn Fn()| {
        let before = store.cloud.counts().requests;
        act();
        assert_eq!(store.cloud.counts().requests - before, expected, "{word}");
    };
    requests("put", 1, &|| drop(put(objects, "a", b"x")));
    requests("get", 1, &|| drop(get(objects, "a")));
    requests("stat", 1, &|| {
        assert_eq!(objects.stat("a").unwrap(), Some(1))
    });
    requests("a range", 1, &|| {
        objects.read_at("a", 0, 1, &mut Vec::new()).unwrap()
    });
    let small = pattern(8 * MIB, 1);
    requests("an upload of one part", 1, &|| {
        drop(upload(objects, "b/1", &small).unwrap())
    });
    let large = pattern(16 * MIB + 1, 2);
    requests("three parts, begin and end", 5, &|| {
        drop(upload(objects, "b/2", &large).unwrap())
    });
    requests("a range of two requests", 2, &|| {
        objects
            .read_at("b/2", 0, 16 * MIB + 1, &mut Vec::new())
            .unwrap()
    });
    requests("a list", 1, &|| assert_eq!(keys(objects, "").len(), 3));
    let all = ["a", "b/1", "b/2"].map(str::to_owned);
    requests("a delete of many", 1, &|| objects.delete(&all).unwrap());
    assert_eq!(store.cloud.counts().retries, 0);
    assert!(store.cloud.counts().sent_bytes >= 24 << 20);
    assert!(store.cloud.counts().received_bytes >= 16 << 20);
}

#[test]
fn a_store_that_fails_for_a_while_is_asked_again() {
    let store = broken();
    let slow = "<Error><Code>SlowDown</Code><Message>Less.</Message></Error>";
    let faults = [
        Break::Answer(500, "", ""),
        Break::Answer(503, "", slow),
        Break::Answer(429, "", ""),
        Break::Reset,
    ];
    for (number, how) in faults.into_iter().enumerate() {
        let key = format!("a/{number}");
        store.proxy.break_first(2, "", "", how.clone());
        for method in ["PUT", "GET", "HEAD", "POST"] {
            let how = how.clone();
            let mut left = 2;
            store.proxy.rule(move |seen| {
                if seen.method != method || left == 0 {
                    return Break::Pass;
                }
                left -= 1;
                how.clone()
            });
            put(&store.objects, &key, b"content");
            assert_eq!(get(&store.objects, &key).unwrap(), b"content");
            assert_eq!(store.objects.stat(&key).unwrap(), Some(7));
            assert_eq!(keys(&store.objects, "a"), [key.as_str()]);
            store.objects.delete(std::slice::from_ref(&key)).unwrap();
            assert_eq!(keys(&store.beside, ""), [""; 0]);
        }
    }
    let counts = store.cloud.counts();
    assert_eq!(counts.retries, 4 * 4 * 2);
    assert!(counts.throttled >= 2 * 4 * 2, "{counts:?}");
}

#[test]
fn a_store_that_always_fails_is_given_up_with_its_own_words() {
    let store = broken_with(|settings| settings.retries.tries = 4);
    let slow = "<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>";
    store.proxy.rule(move |_| Break::Answer(503, "", slow));
    let error = store.objects.get("a").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unreachable);
    assert!(
        error
            .line()
            .ends_with("the store answered 503, SlowDown, Reduce your request rate"),
        "{}",
        error.line()
    );
    assert_eq!(store.proxy.seen().len(), 4);
    let denied = "<Error><Code>AccessDenied</Code><Message>No.</Message></Error>";
    store.proxy.rule(move |_| Break::Answer(403, "", denied));
    assert_eq!(
        store.objects.list("").unwrap_err().kind,
        ErrorKind::Permission
    );
    assert_eq!(
        store.proxy.seen().len(),
        1,
        "a refusal is not asked for again"
    );
    store.proxy.rule(move |_| Break::Answer(507, "", ""));
    assert_eq!(
        store
            .objects
            .put("a", b"x", &PutIf::Always)
            .unwrap_err()
            .kind,
        ErrorKind::Full
    );
}

#[test]
fn the_pause_that_a_store_asks_for_is_kept() {
    let store = broken_with(|settings| settings.retries.longest_pause = Duration::from_secs(5));
    store
        .proxy
        .break_first(1, "GET", "", Break::Answer(503, "Retry-After: 1\r\n", ""));
    assert_eq!(store.objects.get("a").unwrap(), None);
    assert!(store.cloud.counts().paused >= Duration::from_secs(1));
}

#[test]
fn a_put_whose_answer_was_lost_is_known_for_ours() {
    let store = broken();
    store.proxy.break_first(1, "PUT", "", Break::LoseAnswer);
    let Put::Done(version) = store.objects.put("root", b"ours", &PutIf::Absent).unwrap() else {
        panic!("it was stored by the first request");
    };
    assert_eq!(
        store.objects.get("root").unwrap(),
        Some((b"ours".to_vec(), version.clone()))
    );
    store.proxy.break_first(1, "PUT", "", Break::LoseAnswer);
    let Put::Done(next) = store
        .objects
        .put("root", b"ours again", &PutIf::Version(version.clone()))
        .unwrap()
    else {
        panic!("it was stored by the first request");
    };
    assert_eq!(store.objects.get("root").unwrap().unwrap().1, next);
}

#[test]
fn a_put_that_another_did_before_is_refused_though_an_answer_was_lost() {
    let store = broken();
    put(&store.beside, "root", b"theirs");
    store.proxy.break_first(1, "PUT", "", Break::LoseAnswer);
    assert_eq!(
        store
            .objects
            .put("root", b"theirs", &PutIf::Absent)
            .unwrap(),
        Put::Refused
    );
    store
        .proxy
        .break_first(1, "PUT", "", Break::Answer(500, "", ""));
    assert_eq!(
        store
            .objects
            .put("root", b"theirs", &PutIf::Absent)
            .unwrap(),
        Put::Refused
    );
    assert_eq!(get(&store.beside, "root").unwrap(), b"theirs");
}

#[test]
fn an_upload_survives_what_happens_to_its_parts() {
    let store = broken();
    let bytes = pattern(40 * MIB + 7, 3);
    for how in [
        Break::ResetWithin,
        Break::LoseAnswer,
        Break::ChangeByte,
        Break::Answer(503, "", ""),
        Break::Answer(400, "", "<Error><Code>RequestTimeout</Code></Error>"),
    ] {
        store
            .proxy
            .break_first(3, "PUT", "partNumber=", how.clone());
        let parts = upload(&store.objects, "s1", &bytes)
            .unwrap_or_else(|error| panic!("{how:?}: {}", error.line()));
        assert_eq!(parts, part_digests(&bytes), "{how:?}");
        let mut out = Vec::new();
        store
            .beside
            .read_at("s1", 0, bytes.len(), &mut out)
            .unwrap();
        assert!(out == bytes, "{how:?}");
        store.objects.delete(&["s1".to_owned()]).unwrap();
    }
}

#[test]
fn an_upload_whose_begin_or_end_was_lost_is_there_once_and_whole() {
    let store = broken();
    let bytes = pattern(9 * MIB, 4);
    for (part, how) in [
        ("uploads", Break::LoseAnswer),
        ("uploads", Break::Answer(500, "", "")),
        ("uploadId=", Break::LoseAnswer),
        ("uploadId=", Break::Answer(500, "", "")),
        (
            "uploadId=",
            Break::Answer(200, "", "<Error><Code>InternalError</Code></Error>"),
        ),
    ] {
        store.proxy.break_first(1, "POST", part, how.clone());
        let parts = upload(&store.objects, "s1", &bytes)
            .unwrap_or_else(|error| panic!("{part} {how:?}: {}", error.line()));
        assert_eq!(parts, part_digests(&bytes));
        assert_eq!(store.beside.stat("s1").unwrap(), Some(bytes.len() as u64));
        store.objects.delete(&["s1".to_owned()]).unwrap();
    }
}

#[test]
fn an_upload_that_fails_for_good_leaves_nothing() {
    let store = broken_with(|settings| settings.retries.tries = 2);
    let bytes = pattern(25 * MIB, 5);
    for (method, part, how) in [
        ("PUT", "partNumber=2", Break::ChangeByte),
        ("PUT", "partNumber=3", Break::Answer(507, "", "")),
        ("POST", "uploadId=", Break::Answer(403, "", "")),
        ("POST", "uploads", Break::Reset),
    ] {
        let of_rule = how.clone();
        store.proxy.rule(move |seen| {
            if seen.is(method, part) {
                of_rule.clone()
            } else {
                Break::Pass
            }
        });
        upload(&store.objects, "s1", &bytes).unwrap_err();
        assert_eq!(keys(&store.beside, ""), [""; 0], "{method} {part} {how:?}");
        store.proxy.rule(|_| Break::Pass);
        store.objects.abort_uploads("").unwrap();
        assert_eq!(
            store.proxy.count("DELETE", ""),
            0,
            "the upload itself was aborted: {method} {part}"
        );
    }
}

#[test]
fn uploads_of_the_dead_are_aborted_below_a_prefix_only() {
    let store = broken();
    let begun = |key: &str| {
        let mut upload = store.objects.create(key).unwrap();
        upload.append(&pattern(17 * MIB, 6)).unwrap();
        std::mem::forget(upload);
    };
    begun("backups/a/s1");
    begun("backups/a/s2");
    begun("backups/ab/s1");
    while store.proxy.count("PUT", "partNumber") < 3 {
        std::thread::sleep(Duration::from_millis(5));
    }
    store.proxy.rule(|_| Break::Pass);
    store.objects.abort_uploads("backups/a").unwrap();
    assert_eq!(store.proxy.count("DELETE", "backups/a/"), 2);
    assert_eq!(store.proxy.count("DELETE", ""), 2);
    store.objects.abort_uploads("backups/a").unwrap();
    assert_eq!(store.proxy.count("DELETE", ""), 2, "they are gone");
    store.objects.abort_uploads("").unwrap();
    assert_eq!(store.proxy.count("DELETE", "backups/ab/"), 1);
    assert_eq!(keys(&store.beside, ""), [""; 0]);
}

#[test]
fn an_answer_that_is_cut_or_of_other_bytes_is_never_data() {
    let store = broken_with(|settings| settings.retries.tries = 3);
    let bytes = pattern(3 * MIB, 7);
    put(&store.beside, "o", &bytes);
    let read = |offset: usize, len: usize| {
        let mut out = Vec::new();
        store
            .objects
            .read_at("o", offset as u64, len, &mut out)
            .map(|()| out)
    };
    for how in [Break::CutAnswer, Break::ShiftRange, Break::LoseAnswer] {
        store.proxy.break_first(2, "GET", "", how.clone());
        assert!(
            read(MIB, 2 * MIB - 1).unwrap() == bytes[MIB..3 * MIB - 1],
            "{how:?}"
        );
        let of_rule = how.clone();
        store.proxy.rule(move |_| of_rule.clone());
        let error = read(MIB, MIB).unwrap_err();
        let expected = match how {
            Break::ShiftRange => ErrorKind::Corrupt,
            _ => ErrorKind::Unreachable,
        };
        assert_eq!(error.kind, expected, "{how:?}: {}", error.line());
        assert_eq!(store.proxy.seen().len(), 3);
    }
    store.proxy.break_first(2, "GET", "", Break::CutAnswer);
    assert!(get(&store.objects, "o").unwrap() == bytes);
    store.proxy.rule(|_| Break::CutAnswer);
    assert_eq!(
        store.objects.get("o").unwrap_err().kind,
        ErrorKind::Unreachable
    );
    store.proxy.rule(|_| Break::CutAnswer);
    store.objects.list("").unwrap_err();
}

#[test]
fn a_range_of_several_requests_is_of_one_version() {
    let store = broken();
    let (old, new) = (pattern(20 * MIB, 7), pattern(20 * MIB, 9));
    upload(&store.beside, "o", &old).unwrap();
    let (beside, replacement) = (store.beside.clone(), new.clone());
    store.proxy.rule(move |seen| {
        if seen.number == 1 {
            upload(&beside, "o", &replacement).unwrap();
        }
        Break::Pass
    });
    let mut out = Vec::new();
    store.objects.read_at("o", 0, 20 * MIB, &mut out).unwrap();
    assert!(out == new, "not half of each");
    let mut number = 11;
    let beside = store.beside.clone();
    store.proxy.rule(move |seen| {
        if seen.number % 2 == 1 {
            number += 2;
            upload(&beside, "o", &pattern(20 * MIB, number)).unwrap();
        }
        Break::Pass
    });
    let error = store
        .objects
        .read_at("o", 0, 20 * MIB, &mut out)
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt, "{}", error.line());
}

#[test]
fn a_request_that_takes_too_long_is_made_again() {
    let store = broken_with(|settings| settings.retries.patience = Duration::from_secs(2));
    put(&store.beside, "o", b"content");
    store
        .proxy
        .break_first(1, "", "", Break::Wait(Duration::from_secs(4)));
    assert_eq!(get(&store.objects, "o").unwrap(), b"content");
    let bytes = pattern(9 * MIB, 10);
    let waits = Break::Wait(Duration::from_secs(180));
    store.proxy.break_first(1, "PUT", "partNumber=2", waits);
    upload(&store.objects, "s1", &bytes).unwrap();
    assert_eq!(store.proxy.count("PUT", "partNumber=2"), 2);
}

#[test]
fn credentials_that_expire_are_read_anew_from_their_file() {
    let proxy = FaultProxy::new(s3_server().port);
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join(".aws")).unwrap();
    let file = home.path().join(".aws/credentials");
    let write = |secret: &str| {
        let text = format!(
            "[backup]\naws_access_key_id = tester\naws_secret_access_key = {secret}\nregion = us-east-1\n"
        );
        fs::write(&file, text).unwrap();
    };
    write("of-yesterday");
    let variables = [
        ("HOME".to_owned(), home.path().to_str().unwrap().to_owned()),
        ("AWS_PROFILE".to_owned(), "backup".to_owned()),
        ("AWS_ENDPOINT_URL".to_owned(), proxy.endpoint.clone()),
    ];
    let mut settings = settings("http://unused");
    settings.endpoint = None;
    let environment = CloudEnvironment::of(variables);
    let objects = CloudObjects::open(&s3_address(), &settings, &environment).unwrap();
    let error = objects.put("a", b"x", &PutIf::Always).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Permission, "{}", error.line());
    assert!(!format!("{error:?}").contains("of-yesterday"));
    let (file, secret) = (file.clone(), SECRET);
    proxy.rule(move |seen| {
        if seen.number > 0 {
            return Break::Pass;
        }
        let text =
            format!("[backup]\naws_access_key_id = tester\naws_secret_access_key = {secret}\n");
        fs::write(&file, text).unwrap();
        Break::Answer(403, "", "<Error><Code>ExpiredToken</Code></Error>")
    });
    assert!(matches!(
        objects.put("a", b"x", &PutIf::Always).unwrap(),
        Put::Done(_)
    ));
    assert_eq!(proxy.seen().len(), 2);
}

#[test]
fn no_secret_is_in_an_error_or_in_debug_output() {
    let address = s3_address();
    let secret = "hunter3-that-is-wrong";
    let variables = [
        ("AWS_ACCESS_KEY_ID", "tester"),
        ("AWS_SECRET_ACCESS_KEY", secret),
        ("AWS_SESSION_TOKEN", secret),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let environment = CloudEnvironment::of(variables);
    let cloud = CloudObjects::open(&address, &settings(&s3_endpoint()), &environment).unwrap();
    let objects: Arc<dyn Objects> = Arc::new(cloud);
    let mut shown = format!("{objects:?} {environment:?}");
    shown += &format!("{:?}", objects.get("a").unwrap_err());
    shown += &format!("{:?}", objects.put("a", b"x", &PutIf::Absent).unwrap_err());
    shown += &format!("{:?}", objects.list("").unwrap_err());
    shown += &format!("{:?}", objects.delete(&["a".to_owned()]).unwrap_err());
    shown += &format!(
        "{:?}",
        upload(&objects, "s", &pattern(9 * MIB, 1)).unwrap_err()
    );
    shown += &format!("{:?}", objects.create("s").unwrap());
    assert!(!shown.contains(secret), "{shown}");
    assert!(!shown.contains("Signature="), "{shown}");
}

#[test]
fn a_bucket_that_is_absent_is_named_with_a_hint() {
    let address = CloudAddress::parse("s3://no-such-bucket/x")
        .unwrap()
        .unwrap();
    let objects =
        CloudObjects::open(&address, &settings(&s3_endpoint()), &s3_environment()).unwrap();
    let error = objects.list("").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Usage, "{}", error.line());
    assert!(
        error.line().contains("s3://no-such-bucket/x"),
        "{}",
        error.line()
    );
    assert!(error.hint.is_some());
    objects.put("a", b"x", &PutIf::Always).unwrap_err();
}

#[test]
fn a_limit_of_the_rate_is_kept_and_told() {
    let limit = std::num::NonZeroU64::new(20 << 20);
    let store = broken_with(|settings| {
        settings.upload_limit = limit;
        settings.download_limit = limit;
    });
    let bytes = pattern(7 * MIB, 11);
    upload(&store.objects, "o", &bytes).unwrap();
    let after_put = store.cloud.counts().limited;
    // 350 ms, of which 100 ms of idle time before may be made up for.
    assert!(after_put >= Duration::from_millis(200), "{after_put:?}");
    assert!(get(&store.objects, "o").unwrap() == bytes);
    assert!(store.cloud.counts().limited >= after_put + Duration::from_millis(200));
}

#[test]
fn what_is_small_does_not_wait_behind_a_part_that_has_the_only_connection() {
    let store = broken_with(|settings| settings.connections = std::num::NonZeroUsize::new(1));
    store.proxy.rule(|seen| {
        if seen.is("PUT", "partNumber=") {
            Break::Wait(Duration::from_secs(20))
        } else {
            Break::Pass
        }
    });
    let mut large = store.objects.create("large").unwrap();
    large.append(&pattern(17 * MIB, 1)).unwrap();
    while store.proxy.count("PUT", "partNumber=") == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let before = std::time::Instant::now();
    put(&store.objects, "renewal", b"x");
    let is_first = before.elapsed() < Duration::from_secs(15);
    assert!(is_first, "the part is answered after 20 seconds");
    large.abort();
}

#[test]
fn a_probe_knows_that_the_store_does_conditional_puts_and_leaves_nothing() {
    let store = broken();
    assert!(probe(&*store.objects).unwrap());
    assert_eq!(keys(&store.beside, ""), [""; 0]);
    store.proxy.rule(|seen| {
        if seen.method == "PUT" {
            Break::Answer(501, "", "")
        } else {
            Break::Pass
        }
    });
    assert!(!probe(&*store.objects).unwrap());
}

#[test]
fn keys_of_others_in_a_bucket_are_stepped_over() {
    let store = broken();
    put(&store.beside, "backups/a", b"x");
    put(&store.beside, "backups/b", b"y");
    let entry = "<Contents><Key>t//2026/x</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag><Size>1</Size></Contents>";
    store.proxy.rule(move |seen| {
        if seen.is("GET", "list-type") {
            Break::Insert("<Contents>", entry)
        } else {
            Break::Pass
        }
    });
    assert_eq!(keys(&store.objects, ""), ["backups/a", "backups/b"]);
    assert_eq!(store.cloud.counts().retries, 0);
}

#[test]
fn a_repository_that_is_a_whole_bucket_lists_its_own_directories() {
    let address = CloudAddress::parse("s3://vault").unwrap().unwrap();
    let proxy = FaultProxy::new(s3_server().port);
    let whole =
        CloudObjects::open(&address, &settings(&proxy.endpoint), &s3_environment()).unwrap();
    let whole: Arc<dyn Objects> = Arc::new(whole);
    put(&whole, "backups/20261128T000000Z-whole0/manifest", b"x");
    let below = |prefix: &str| {
        let listed = whole.list(prefix).unwrap();
        listed
            .into_iter()
            .filter(|object| object.key.contains("whole0"))
            .count()
    };
    proxy.rule(|_| Break::Pass);
    assert_eq!(below(""), 1);
    let asked = proxy.seen();
    assert!(
        asked.iter().all(|seen| seen.target.contains("prefix=")),
        "{asked:?}"
    );
    let listed = whole.list("").unwrap();
    assert!(listed.iter().all(|object| !object.key.starts_with("t/")));
    whole
        .delete(&["backups/20261128T000000Z-whole0/manifest".to_owned()])
        .unwrap();
}

#[test]
fn a_store_that_names_an_object_in_other_words_denies_that_object() {
    let store = broken();
    put(&store.beside, "a", b"x");
    let denied = |key: &'static str, words: &str| {
        let body: &'static str = Box::leak(format!(
            "<DeleteResult><Error><Key>{key}</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
        ).into_boxed_str());
        store.proxy.rule(move |seen| {
            if seen.method == "POST" {
                Break::Answer(200, "", body)
            } else {
                Break::Pass
            }
        });
        let error = store.objects.delete(&["a".to_owned()]).unwrap_err();
        assert!(error.line().contains(words), "{}", error.line());
    };
    let own = Box::leak(format!("/vault/{}/a", store.prefix()).into_boxed_str());
    denied(own, "AccessDenied");
    denied("/vault/other", "was not asked to delete");
    denied("", "was not asked to delete");
}

#[test]
fn a_store_without_a_list_of_unfinished_uploads_is_used_without_it() {
    let store = broken();
    for (status, body) in [
        (501, "<Error><Code>NotImplemented</Code></Error>"),
        (403, "<Error><Code>AccessDenied</Code></Error>"),
    ] {
        let before = store.cloud.counts().unlisted_uploads;
        store
            .proxy
            .break_first(1, "GET", "uploads", Break::Answer(status, "", body));
        store.objects.abort_uploads("backups/a").unwrap();
        assert_eq!(store.cloud.counts().unlisted_uploads, before + 1);
    }
    let gone = Break::Answer(404, "", "<Error><Code>NoSuchBucket</Code></Error>");
    store.proxy.break_first(1, "GET", "uploads", gone);
    store.objects.abort_uploads("backups/a").unwrap_err();
}

#[test]
fn an_answer_that_a_proxy_has_packed_is_an_error_that_says_so() {
    let store = broken();
    put(&store.beside, "a", b"content");
    for method in ["GET", "PUT"] {
        let packed = Break::Answer(
            200,
            "Content-Encoding: gzip\r\nETag: \"e\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n",
            "x",
        );
        store.proxy.rule(move |seen| {
            if seen.method == method {
                packed.clone()
            } else {
                Break::Pass
            }
        });
        let error = match method {
            "GET" => store.objects.get("a").unwrap_err(),
            _ => store.objects.put("b", b"x", &PutIf::Always).unwrap_err(),
        };
        assert!(error.line().contains("proxy"), "{}", error.line());
        assert!(error.hint.is_some());
        assert_eq!(store.proxy.seen().len(), 1, "it is not asked again");
    }
}

#[test]
fn answers_without_an_end_are_given_up() {
    let store = broken_with(|settings| settings.retries.tries = 2);
    for (status, words) in [(200, "MiB"), (403, "Odd")] {
        store.proxy.rule(move |_| Break::AnswerForEver(status));
        let error = store.objects.list("").unwrap_err();
        assert!(error.line().contains(words), "{}", error.line());
    }
}

/// The time that a request waits for `--limit-download` is not the store's.
#[test]
fn a_slow_limit_gives_up_no_request() {
    let store = broken_with(|settings| {
        settings.download_limit = std::num::NonZeroU64::new(1 << 20);
        settings.retries.patience = Duration::from_millis(900);
    });
    put(&store.beside, "o", &pattern(3 * MIB, 3));
    let read = |index: usize| {
        let mut out = Vec::new();
        store
            .objects
            .read_at("o", (index * MIB) as u64, MIB, &mut out)
            .unwrap();
        assert_eq!(out, pattern(3 * MIB, 3)[index * MIB..(index + 1) * MIB]);
    };
    std::thread::scope(|scope| {
        (0..3).for_each(|index| drop(scope.spawn(move || read(index))));
    });
    assert_eq!(store.cloud.counts().retries, 0);
    assert!(store.cloud.counts().limited > Duration::from_secs(2));
}
