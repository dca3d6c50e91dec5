//! A communicator between processes for these tests: over TCP on the loopback device, through rank 0. In
//! service, devices run the collectives of several processes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fulmen_core::{Communicator, CommunicatorError};

/// One rank's end.
#[derive(Debug)]
pub(crate) struct LoopbackRank {
    rank: u32,
    size: u32,
    /// From rank 0 to ranks 1, 2, …; from others to rank 0.
    peers: Vec<TcpStream>,
    /// Why the group has failed.
    failure: Mutex<Option<String>>,
    lost: AtomicBool,
}

impl LoopbackRank {
    /// The end of rank 0, to which the others connect.
    pub(crate) fn host(
        listener: &TcpListener,
        (size, wait): (u32, Duration),
        timeout: Duration,
    ) -> std::io::Result<Arc<LoopbackRank>> {
        listener.set_nonblocking(true)?;
        let began = std::time::Instant::now();
        let mut peers: Vec<(u32, TcpStream)> = Vec::new();
        while peers.len() + 1 < size as usize {
            if began.elapsed() > wait {
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            let Ok((mut stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            };
            stream.set_nonblocking(false)?;
            let mut rank = [0; 4];
            stream.set_read_timeout(Some(wait))?;
            stream.read_exact(&mut rank)?;
            peers.push((u32::from_le_bytes(rank), stream));
        }
        peers.sort_by_key(|(rank, _)| *rank);
        LoopbackRank::new(0, size, timeout, peers.into_iter().map(|(_, stream)| stream).collect())
    }

    /// The end of another rank.
    pub(crate) fn visit(
        address: &str,
        (rank, size): (u32, u32),
        timeout: Duration,
    ) -> std::io::Result<Arc<LoopbackRank>> {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(&rank.to_le_bytes())?;
        LoopbackRank::new(rank, size, timeout, vec![stream])
    }

    fn new(
        rank: u32,
        size: u32,
        timeout: Duration,
        peers: Vec<TcpStream>,
    ) -> std::io::Result<Arc<LoopbackRank>> {
        for peer in &peers {
            peer.set_nodelay(true)?;
            peer.set_read_timeout(Some(timeout))?;
        }
        let (failure, lost) = (Mutex::default(), AtomicBool::new(false));
        Ok(Arc::new(LoopbackRank { rank, size, peers, failure, lost }))
    }

    fn receive(&self, peer: usize, bytes: &mut [u8]) -> Result<(), CommunicatorError> {
        (&self.peers[peer]).read_exact(bytes).map_err(|error| self.error(peer, &error))
    }

    fn send(&self, peer: usize, bytes: &[u8]) -> Result<(), CommunicatorError> {
        (&self.peers[peer]).write_all(bytes).map_err(|error| self.error(peer, &error))
    }

    fn error(&self, peer: usize, error: &std::io::Error) -> CommunicatorError {
        let reason = self.failure.lock().unwrap().clone();
        let rank = if self.rank == 0 { peer as u32 + 1 } else { 0 };
        self.abort(&error.to_string());
        match reason {
            Some(reason) => CommunicatorError::Rank { rank: self.rank, reason },
            None => CommunicatorError::Rank { rank, reason: error.to_string() },
        }
    }

    /// The bytes of all ranks in their order, on each of them.
    fn exchange(&self, own: &[u8]) -> Result<Vec<u8>, CommunicatorError> {
        let mut all = vec![0; own.len() * self.size as usize];
        if self.rank > 0 {
            self.send(0, own)?;
            self.receive(0, &mut all)?;
            return Ok(all);
        }
        all[..own.len()].copy_from_slice(own);
        for (peer, theirs) in all[own.len()..].chunks_mut(own.len().max(1)).enumerate() {
            self.receive(peer, theirs)?;
        }
        (0..self.peers.len()).try_for_each(|peer| self.send(peer, &all))?;
        Ok(all)
    }
}

impl Communicator for LoopbackRank {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn all_reduce(&self, values: &mut [f32]) -> Result<(), CommunicatorError> {
        let all = self.all_gather(values)?;
        let count = values.len();
        for (at, value) in values.iter_mut().enumerate() {
            *value = (0..self.size as usize).map(|rank| all[rank * count + at]).sum();
        }
        Ok(())
    }

    fn all_gather(&self, values: &[f32]) -> Result<Vec<f32>, CommunicatorError> {
        let own: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let all = self.exchange(&own)?;
        Ok(all.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect())
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), CommunicatorError> {
        let all = self.exchange(bytes)?;
        let count = bytes.len();
        bytes.copy_from_slice(&all[..count]);
        Ok(())
    }

    fn barrier(&self) -> Result<(), CommunicatorError> {
        self.exchange(&[0]).map(drop)
    }

    fn abort(&self, reason: &str) {
        self.failure.lock().unwrap().get_or_insert_with(|| reason.to_owned());
        self.lost.store(true, Ordering::Relaxed);
        for peer in &self.peers {
            let _ = peer.shutdown(Shutdown::Both);
        }
    }

    fn reset(&self) {}

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}
