-- The few lines that load slicewise.lua. A site with a job_submit.lua of its own adds them to it and
-- calls slicewise's functions at the end of its own. Whatever goes wrong in here, slurmctld goes on:
-- without the module jobs are submitted as ever, and the limits compiled into Slurm hold, but for GPUs
-- of no type, which Slurm starts above them. What `slicewise admission install` proposes refuses these.
--
-- Check before slurmctld is restarted (a broken script prevents its start), with its own Lua:
--   luac5.1 -p /etc/slurm/job_submit.lua

local SLICEWISE = "/opt/slicewise/lib/python3.11/site-packages/slurm_plugin/slicewise.lua"

local loaded, slicewise = pcall(dofile, SLICEWISE)
if loaded then
    loaded, slicewise = pcall(function(module)
        module.configure({
            socket = "/run/slicewise/admission/admission.sock",
            -- Then advise (sets fields, refuses nothing), then enforce; each time after the daemon's
            -- own mode in slicewise.toml.
            mode = "observe",
            timeout_s = 0.010, -- slurmctld stands still for so long at most
            partitions = { "gpu" }, -- as in slicewise.toml; jobs elsewhere are not asked about
            without_gpu = "refuse", -- what becomes of jobs there that ask for no GPU: refuse, allow
            -- The kill switch: while SlurmUser finds this file, nothing at all is done.
            off_file = "/etc/slicewise/off",
        })
        return module
    end, slicewise)
end
if not loaded then
    slurm.log_error("slicewise is off: %s", tostring(slicewise))
end

local function ask_slicewise(name, ...)
    if not loaded then
        return slurm.SUCCESS
    end
    local worked, code = pcall(slicewise[name], ...)
    if worked then
        return code
    end
    slurm.log_error("slicewise: %s: %s", name, tostring(code))
    return slurm.SUCCESS
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    return ask_slicewise("job_submit", job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return ask_slicewise("job_modify", job_desc, job_rec, part_list, modify_uid)
end

return slurm.SUCCESS
