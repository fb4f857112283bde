//! A pool of connections with one session of the server, which clients have one after the other, as pgbouncer's. It stays when they go.

#![allow(unreachable_pub)]

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
};

/// Serve at the port that is given back; without TLS.
pub fn start(server: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut session = None;
        for client in listener.incoming().flatten() {
            let _ = serve(client, server, &mut session);
        }
    });
    port
}

/// One client. What the server said when the session began, it says to each.
fn serve(
    mut client: TcpStream,
    server: u16,
    session: &mut Option<(TcpStream, Vec<u8>)>,
) -> std::io::Result<()> {
    let mut len = [0; 4];
    client.read_exact(&mut len)?;
    let mut startup = vec![0; u32::from_be_bytes(len) as usize - 4];
    client.read_exact(&mut startup)?;
    let (mut target, greeting) = match session.take() {
        Some((to, greeting)) => {
            client.write_all(&greeting)?;
            (to, greeting)
        }
        None => {
            let mut target = TcpStream::connect(("127.0.0.1", server))?;
            target.write_all(&[&len[..], &startup].concat())?;
            let greeting = greet(&mut client, &mut target)?;
            (target, greeting)
        }
    };
    loop {
        match message(&mut client) {
            Ok(asked) if asked[0] != b'X' => {
                target.write_all(&asked)?;
                // A question ends so; the answer does so when the server is ready for the next.
                if matches!(asked[0], b'Q' | b'S') {
                    client.write_all(&until_ready(&mut target)?)?;
                }
            }
            _ => {
                *session = Some((target, greeting));
                return Ok(());
            }
        }
    }
}

/// The first client says who it is; the others are believed. Gives what the server says after that.
fn greet(client: &mut TcpStream, to: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    const PASSWORD: [&[u8]; 4] = [&[0, 0, 0, 3], &[0, 0, 0, 5], &[0, 0, 0, 10], &[0, 0, 0, 11]];
    loop {
        let said = message(to)?;
        client.write_all(&said)?;
        if said[0] == b'R' && said[5..] == [0; 4] {
            let rest = until_ready(to)?;
            client.write_all(&rest)?;
            return Ok([said, rest].concat());
        }
        if said[0] == b'R' && PASSWORD.contains(&&said[5..9]) {
            to.write_all(&message(client)?)?;
        }
    }
}

fn until_ready(from: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let message = message(from)?;
        all.extend(&message);
        if message[0] == b'Z' {
            return Ok(all);
        }
    }
}

/// A letter, its length with itself, and so many bytes.
fn message(from: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let mut all = head.to_vec();
    all.resize(1 + len, 0);
    from.read_exact(&mut all[5..])?;
    Ok(all)
}
