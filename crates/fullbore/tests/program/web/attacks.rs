//! `fullbore web` as an attacker would try it.

use std::{
    ffi::OsStr,
    fs,
    io::{Read, Write},
    os::unix::ffi::OsStrExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};
use tempfile::{TempDir, tempdir};
use testkit::{
    runs::{fullbore, noise, segments, write},
    web::{Answer, Session, WebServer, encoded},
};

/// Names that mean something to a browser, a shell or a terminal.
const NAMES: [&[u8]; 7] = [
    b"<script>alert(1)<!--",
    b"a\"onmouseover=alert(1) x=\"",
    b"two\nlines\r\nSet-Cookie: a=b",
    b"not \xff utf-8 \xfe",
    b"<img src=x onerror=alert(1)>.html",
    "right\u{202e}gpj.exe".as_bytes(),
    b"'; rm -rf $HOME; `id`",
];

/// Pages that tell of a repository, with an id in the place of B and a key in that of S.
const PAGES: [&str; 16] = [
    "",
    "source?r=0&s=S",
    "retention?r=0&s=S&keep-last=1",
    "backup?r=0&b=B",
    "file?r=0&b=B&d=plain",
    "search?r=0&b=B&q=p",
    "versions?r=0&b=B&d=plain",
    "diff?r=0&a=B&b=B",
    "postgres?r=0",
    "runs?r=0",
    "checks?r=0",
    "restore?r=0&b=B",
    "get?r=0&b=B&d=plain",
    "tar?r=0&b=B",
    "zip?r=0&b=B",
    "picture?r=0&b=B&d=plain",
];

fn hostile_tree(dir: &Path) {
    for name in NAMES {
        write(dir.join(OsStr::from_bytes(name)), name);
    }
    write(dir.join("plain"), "plain words");
}

fn repository() -> TempDir {
    let dir = tempdir().unwrap();
    hostile_tree(&dir.path().join("t"));
    backup(dir.path());
    dir
}

fn backup(dir: &Path) {
    fullbore(args!["backup", dir.join("t"), "--to", dir.join("r"), "-q"]).ends_with(0);
}

#[test]
fn without_a_session_nothing_of_a_repository_is_told() {
    let dir = repository();
    let session = Session::of(&dir.path().join("r"));
    let (backup, source) = session.newest();
    let server = &session.server;
    let guessed = format!("Cookie: fullbore={}\r\n", "0".repeat(64));
    for page in PAGES {
        let page = page.replace('B', &backup).replace('S', &source);
        for prefix in ["", "api/"] {
            for cookie in ["", "Cookie: fullbore=\r\n", &guessed] {
                let answer = server.ask("GET", &format!("{prefix}{page}"), cookie, "");
                let answer = answer.is(401);
                let text = answer.text();
                for secret in [&*backup, &*source, "plain", &server.token] {
                    assert!(!text.contains(secret), "{page}: {text}");
                }
            }
        }
        // Another server of this host does not know the directory of the pages.
        let elsewhere = format!(
            "GET /{page} HTTP/1.1\r\nHost: {}\r\n{}\r\n",
            server.host, session.cookie
        );
        server.raw(elsewhere.as_bytes()).unwrap().is(404);
    }
}

#[test]
fn a_token_opens_one_session_and_a_guessed_one_none() {
    let dir = repository();
    let server = WebServer::of(&dir.path().join("r"));
    let near = format!("{}0", &server.token[..63]);
    for guess in ["", "0", &server.token[..63], &near, &"f".repeat(64)] {
        if guess != server.token {
            server
                .ask("POST", "enter", "", &format!("token={guess}"))
                .is(401);
        }
    }
    // The token of an address is not taken from a query.
    server
        .ask("GET", &format!("enter?token={}", server.token), "", "")
        .is(200);
    server
        .ask("GET", &format!("?token={}", server.token), "", "")
        .is(401);
    let cookie = server.session();
    server.ask("GET", "", &cookie, "").is(200);
    server
        .ask("POST", "enter", "", &format!("token={}", server.token))
        .is(401);
    server.ask("POST", "leave", &cookie, "").is(303);
    server.ask("GET", "", &cookie, "").is(401);
}

#[test]
fn other_names_and_other_sites_are_refused() {
    let dir = repository();
    let session = Session::of(&dir.path().join("r"));
    let (server, cookie) = (&session.server, &session.cookie);
    let port = server.host.split_once(':').unwrap().1;
    let with_host = |host: &str| {
        let head = format!("GET {} HTTP/1.1\r\n{host}{cookie}\r\n", server.base);
        server.raw(head.as_bytes()).unwrap().status
    };
    assert_eq!(with_host(&format!("Host: {}\r\n", server.host)), 200);
    for rebound in [
        "evil.example",
        "127.0.0.1",
        "127.0.0.1.evil.example",
        "[::1]",
    ] {
        assert_eq!(with_host(&format!("Host: {rebound}\r\n")), 421, "{rebound}");
        assert_eq!(
            with_host(&format!("Host: {rebound}:{port}\r\n")) == 200,
            rebound == "127.0.0.1"
        );
    }
    assert_eq!(with_host(""), 421);
    let twice = format!("Host: {}\r\nHost: evil.example\r\n", server.host);
    assert_eq!(with_host(&twice), 400);
    for (headers, status) in [
        (format!("Origin: http://{}\r\n", server.host), 200),
        ("Origin: http://evil.example\r\n".to_owned(), 403),
        ("Origin: null\r\n".to_owned(), 403),
        (format!("Origin: https://{}\r\n", server.host), 403),
        (format!("Origin: http://{}0\r\n", server.host), 403),
        ("Sec-Fetch-Site: cross-site\r\n".to_owned(), 403),
        ("Sec-Fetch-Site: same-site\r\n".to_owned(), 403),
    ] {
        let answer = server.ask("GET", "", &format!("{headers}{cookie}"), "");
        assert_eq!(answer.status, status, "{headers}");
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
}

#[test]
fn paths_and_ids_that_lead_elsewhere_are_refused() {
    let dir = repository();
    let session = Session::of(&dir.path().join("r"));
    let (backup, _) = session.newest();
    for path in [
        "../../etc/passwd",
        "a/../../x",
        "%2e%2e/x",
        "%2e%2e%2f%2e%2e%2fetc/passwd",
    ] {
        for page in ["get", "file", "backup", "tar", "zip", "restore", "search"] {
            let answer = session.get(&format!("{page}?r=0&b={backup}&d={path}&q=x"));
            assert!((400..500).contains(&answer.status), "{page} {path}");
            assert!(!answer.text().contains("root:"), "{page} {path}");
        }
    }
    session
        .get(&format!("get?r=0&b={backup}&d=/etc/passwd"))
        .is(404);
    for id in [
        "",
        "latest",
        "..",
        "../r",
        "%2e%2e/backups",
        "--help",
        "20261121T054501Z-k3f9qz",
    ] {
        for page in ["backup", "get", "tar", "zip", "restore", "versions"] {
            let answer = session.get(&format!("{page}?r=0&b={id}&d=plain"));
            assert_eq!(answer.status, 404, "{page} {id}");
        }
        session.get(&format!("diff?r=0&a={id}&b={backup}")).is(404);
    }
    session.get(&format!("backup?r=1&b={backup}")).is(404);
    for path in [
        "../page.css",
        "..%2fpage.css",
        "/etc/passwd",
        "%00",
        "page.css/../x",
    ] {
        let answer = session.get(path);
        assert!(answer.status >= 400, "{path}");
    }
}

#[track_caller]
fn is_shut(answer: &Answer) {
    let policy = answer.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    for word in ["unsafe-inline", "unsafe-eval", "data:", "*"] {
        assert!(!policy.contains(word), "{policy}");
    }
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
        ("x-frame-options", "DENY"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(answer.header(name), Some(value), "{name}");
    }
}

#[test]
fn names_and_content_of_a_backup_are_no_part_of_a_page() {
    let dir = repository();
    let session = Session::of(&dir.path().join("r"));
    let (backup, source) = session.newest();
    let mut pages: Vec<_> = PAGES.iter().map(|page| (*page).to_owned()).collect();
    for name in NAMES {
        for page in ["file", "versions", "restore"] {
            pages.push(format!("{page}?r=0&b=B&d={}", encoded(name)));
        }
        pages.push(format!("search?r=0&b=B&q={}", encoded(name)));
    }
    for page in pages {
        let answer = session.get(
            &page
                .replace("b=B", &format!("b={backup}"))
                .replace("a=B", &format!("a={backup}"))
                .replace("s=S", &format!("s={source}")),
        );
        is_shut(&answer);
        if answer.header("content-type") != Some("text/html; charset=utf-8") {
            continue;
        }
        let text = answer.text();
        let scripts = text.matches("<script").count();
        assert_eq!(scripts, 1, "{page}: our own alone: {text}");
        assert!(text.contains("<script src=\"page.js\" defer></script>"));
        for bad in [
            "<img src=x",
            "onmouseover=alert(1) x=\"",
            " style=",
            "\u{202e}",
        ] {
            // Within an attribute a quote is escaped, so the attribute does not end.
            let is_query = page.starts_with("search") && bad == "\u{202e}";
            let found = !is_query && text.contains(bad) && !text.contains(&format!("&quot;{bad}"));
            assert!(!found, "{page}: {bad}");
        }
    }
}

#[test]
fn a_download_is_never_opened_and_never_ends_its_header() {
    let dir = repository();
    let session = Session::of(&dir.path().join("r"));
    let (backup, _) = session.newest();
    for name in NAMES {
        let answer = session.get(&format!("get?r=0&b={backup}&d={}", encoded(name)));
        let answer = answer.is(200);
        assert_eq!(answer.body, name, "the content is the name");
        is_shut(&answer);
        assert_eq!(
            answer.header("content-type"),
            Some("application/octet-stream")
        );
        let named = answer.header("content-disposition").unwrap();
        assert!(named.starts_with("attachment; filename=\""), "{named}");
        assert_eq!(answer.header("set-cookie"), None);
        assert_eq!(named.matches('"').count(), 2, "{named}");
    }
}

#[test]
fn only_pictures_without_scripts_are_drawn_and_nothing_may_run_in_them() {
    let dir = tempdir().unwrap();
    let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\"><script>alert(1)</script></svg>";
    let png = b"\x89PNG\r\n\x1a\n<script>alert(1)</script>";
    write(dir.path().join("t/a.png"), svg);
    write(dir.path().join("t/b.html"), png);
    backup(dir.path());
    let session = Session::of(&dir.path().join("r"));
    let (backup, _) = session.newest();
    session
        .get(&format!("picture?r=0&b={backup}&d=a.png"))
        .is(400);
    let drawn = session
        .get(&format!("picture?r=0&b={backup}&d=b.html"))
        .is(200);
    assert_eq!(drawn.header("content-type"), Some("image/png"));
    assert_eq!(drawn.header("x-content-type-options"), Some("nosniff"));
    let policy = drawn.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'; sandbox;"), "{policy}");
}

#[test]
fn restores_are_refused_unless_they_are_allowed() {
    let dir = repository();
    let repository = dir.path().join("r");
    let target = dir.path().join("target");
    let session = Session::of(&repository);
    let (backup, _) = session.newest();
    let form = format!("r=0&b={backup}&to={}", target.display());
    let post = |session: &Session, headers: &str| {
        let headers = format!("{}{headers}", session.cookie);
        session.server.ask("POST", "restore-run", &headers, &form)
    };
    let refused = post(&session, "").is(403);
    assert!(refused.text().contains("--allow-restore"));
    session.get(&format!("restore-run?{form}")).is(200);
    session
        .server
        .ask("POST", "api/restore-run", &session.cookie, &form)
        .is(403);
    assert!(!target.exists());

    let session = Session::start(args![repository, "--allow-restore"]);
    session.server.ask("POST", "restore-run", "", &form).is(401);
    post(&session, "Origin: http://evil.example\r\n").is(403);
    post(&session, "Sec-Fetch-Site: cross-site\r\n").is(403);
    session.get(&format!("restore-run?{form}")).is(200);
    assert!(!target.exists());
    for bad in ["relative", "", "--delta"] {
        let form = format!("r=0&b={backup}&to={bad}");
        session
            .server
            .ask("POST", "restore-run", &session.cookie, &form)
            .is(400);
    }
    post(&session, "").is(303);
    let begin = Instant::now();
    while session.api("restore-run")["running"] == true {
        assert!(begin.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(50));
    }
    let state = session.api("restore-run");
    assert_eq!(state["exit_code"], 0, "{state}");
    assert_eq!(fs::read(target.join("plain")).unwrap(), b"plain words");
    // A directory that has files is not touched.
    post(&session, "").is(303);
    while session.api("restore-run")["running"] == true {
        thread::sleep(Duration::from_millis(50));
    }
    assert_ne!(session.api("restore-run")["exit_code"], 0);
}

#[test]
fn malformed_and_huge_requests_are_refused() {
    let dir = repository();
    let server = WebServer::of(&dir.path().join("r"));
    let host = &server.host;
    let long = "x".repeat(1 << 20);
    let many = "X: y\r\n".repeat(1000);
    for (request, status) in [
        (format!("GET / HTTP/1.1\r\nX: {long}\r\n\r\n"), 431),
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), 431),
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), 431),
        (format!("PUT / HTTP/1.1\r\nHost: {host}\r\n\r\n"), 405),
        (format!("CONNECT {host} HTTP/1.1\r\n\r\n"), 405),
        (
            format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 99999999\r\n\r\n"),
            413,
        ),
        (
            format!(
                "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
            411,
        ),
        (
            format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            400,
        ),
        ("\x16\x03\x01 not http\r\n\r\n".to_owned(), 400),
    ] {
        let answer = server.raw(request.as_bytes()).expect("an answer");
        assert_eq!(
            answer.status,
            status,
            "{}",
            &request[..request.len().min(80)]
        );
    }
    // One request a connection: a second one is not read.
    let two =
        format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\nGET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let answer = server.raw(two.as_bytes());
    assert!(answer.is_none_or(|answer| answer.status >= 400));
}

#[test]
fn those_who_send_slowly_hold_nobody_and_are_ended() {
    let dir = repository();
    let session = Session::of(&dir.path().join("r"));
    let mut slow: Vec<_> = (0..200).map(|_| session.server.connect()).collect();
    for socket in &mut slow {
        // Some were closed for others.
        let _ = socket.write_all(b"GET / HTTP/1.1\r\nX");
    }
    let begin = Instant::now();
    session.get("").is(200);
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    // A byte now and then does not keep a connection.
    let mut dripping = session.server.connect();
    let begin = Instant::now();
    dripping
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    dripping.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
    let mut byte = [0];
    while begin.elapsed() < Duration::from_secs(30) {
        let _ = dripping.write_all(b"y");
        match dripping.read(&mut byte) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            _ => break,
        }
    }
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn those_who_read_slowly_leave_places_for_others() {
    let dir = tempdir().unwrap();
    write(dir.path().join("t/large"), noise(1, 24 << 20));
    backup(dir.path());
    let session = Session::of(&dir.path().join("r"));
    let (backup, _) = session.newest();
    let server = &session.server;
    let request = format!(
        "GET {}get?r=0&b={backup}&d=large HTTP/1.1\r\nHost: {}\r\n{}\r\n",
        server.base, server.host, session.cookie
    );
    let mut held: Vec<_> = (0..24).map(|_| server.connect()).collect();
    for socket in &mut held {
        socket.write_all(request.as_bytes()).unwrap();
        let mut begin = [0; 12];
        socket.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200");
    }
    let begin = Instant::now();
    session.get(&format!("backup?r=0&b={backup}")).is(200);
    server.raw(request.as_bytes()).unwrap().is(503);
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    drop(held);
    let again = Instant::now();
    while server.raw(request.as_bytes()).unwrap().status == 503 {
        assert!(again.elapsed() < Duration::from_secs(20));
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_damaged_file_is_a_download_without_its_end() {
    let dir = tempdir().unwrap();
    write(dir.path().join("t/large"), noise(1, 8 << 20));
    backup(dir.path());
    let segment = &segments(&dir.path().join("r"))[0];
    let mut bytes = fs::read(segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::set_permissions(segment, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    fs::write(segment, bytes).unwrap();
    let session = Session::of(&dir.path().join("r"));
    let (backup, _) = session.newest();
    for page in ["get?d=large&", "tar?", "zip?"] {
        let answer = session.get(&format!("{page}r=0&b={backup}"));
        assert!(!answer.is_whole, "{page} {}", answer.body.len());
    }
}

#[test]
fn the_token_is_in_no_word_of_a_program() {
    let dir = repository();
    let programs = dir.path().join("bin");
    let seen = dir.path().join("seen");
    let script = format!(
        "#!/bin/sh\necho \"$@\" > {0}.words\nstat -c %a \"$1\" > {0}.mode\ncp \"$1\" {0}\n",
        seen.display()
    );
    write(programs.join("xdg-open"), script);
    testkit::runs::set_mode(&programs.join("xdg-open"), 0o755);
    let path = format!("{}:/usr/bin:/bin", programs.display());
    let mut command = testkit::runs::command(args!["web", dir.path().join("r"), "-q"]);
    command.env("PATH", path).env("DISPLAY", ":99");
    command.env("XDG_RUNTIME_DIR", dir.path());
    let mut server = WebServer::of_command(command);
    let begin = Instant::now();
    while !seen.exists() {
        assert!(begin.elapsed() < Duration::from_secs(30), "no browser");
        thread::sleep(Duration::from_millis(20));
    }
    thread::sleep(Duration::from_millis(200));
    let words = fs::read_to_string(seen.with_extension("words")).unwrap();
    assert!(!words.contains(&server.token), "{words}");
    let mode = fs::read_to_string(seen.with_extension("mode")).unwrap();
    assert_eq!(mode.trim(), "600");
    let page = fs::read_to_string(&seen).unwrap();
    assert!(page.contains(&server.token), "{page}");
    let file = Path::new(words.trim());
    assert!(file.exists());
    server.session();
    assert!(!file.exists(), "it is gone when the token was used");
    let _ = server.child.kill();
}
