-- Loads slicewise.lua for a job_submit.lua that still names its former place: an upgrade must not leave
-- slurmctld without it until `slicewise admission install` was run again.
local directory = debug.getinfo(1, "S").source:match("^@(.*/)") or ""
return dofile(directory .. "../../slicewise/slurm_plugin/lua/slicewise.lua")
