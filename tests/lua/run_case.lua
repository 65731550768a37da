-- Reads a case (JSON) from stdin, calls slicewise.lua with stubs of slurmctld's `slurm` table and
-- prints what it did (JSON).
local cjson = require "cjson"
local socket = require "socket"
local case = cjson.decode(io.read("*a"))
local told, logged, read_fields = {}, {}, {}

slurm = {
    SUCCESS = 0,
    ERROR = -1,
    ESLURM_ACCESS_DENIED = 2002,
    ESLURM_ACCOUNTING_POLICY = 2050,
    ESLURM_INVALID_QOS = case.slurm ~= "22.05" and 2066 or nil,
    log_user = function(format, ...) told[#told + 1] = string.format(format, ...) end,
    log_info = function(format, ...) logged[#logged + 1] = string.format(format, ...) end,
}

-- Slurm gives userdata-like records: writes are kept, forbidden reads end slurmctld.
local function record(fields)
    local values = {}
    for key, value in pairs(fields or {}) do
        values[key] = value
    end
    return setmetatable({}, {
        __index = function(_, key)
            read_fields[key] = true
            if case.raise_on_read == key then
                error("no field " .. key)
            end
            return values[key]
        end,
        __newindex = function(_, key, value) values[key] = value end,
    }), values
end

local module = dofile(case.module)
module.configure(case.configure)
local job_desc, values = record(case.job_desc)
local job_rec = record(case.job_rec)
local started = socket.gettime()
local code
if case.call == "job_submit" then
    code = module.job_submit(job_desc, case.part_list, case.uid)
else
    code = module.job_modify(job_desc, job_rec, case.part_list, case.uid)
end
-- An empty table would be an object or a list as cjson likes: joined text is unambiguous.
print(cjson.encode({
    code = code,
    elapsed_s = socket.gettime() - started,
    told = table.concat(told, "\n"),
    logged = table.concat(logged, "\n"),
    job_desc = values,
    read_assoc_qos = read_fields.assoc_qos == true,
}))
