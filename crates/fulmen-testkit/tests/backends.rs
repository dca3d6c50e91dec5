//! The whole table on every backend. A further backend is one more line.

fulmen_testkit::enrol!(cpu, fulmen_cpu::CpuDispatcher::new());
